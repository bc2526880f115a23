// Package measure reads from a live target what a forecast needs: how many entities there are and are
// due, at which rate they are deleted, and how long they live. [SettingsOf] has what it needs of the settings.
//
// The invariants are that it writes nothing, that it says what its COUNTs cost before it makes them,
// and that what the records do not show is unknown, never a guess.
//
// Limits: rates and lives are those of what was deleted, so an application that grows writes more.
// What is due behind the cursors is not counted; status shows it.
package measure
