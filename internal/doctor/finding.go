package doctor

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/internal/doctor/facts"
)

// A Severity says what a finding is for the exit code, and for people.
type Severity string

// The severities.
const (
	Error   Severity = "error"   // something is not deleted, or deleted by somebody else
	Warning Severity = "warning" // it works, but a person should know
	Info    Severity = "info"    // worth knowing
)

// A Group is what a finding is about. Findings are shown by group, in this order.
type Group string

// The groups.
const (
	Access        Group = "access"
	Database      Group = "database"
	Configuration Group = "configuration"
	Indexes       Group = "indexes"
	Clock         Group = "clock"
	Processes     Group = "processes"
	Data          Group = "data"
)

// Groups lists the groups in their order.
func Groups() []Group {
	return []Group{Access, Database, Configuration, Indexes, Clock, Processes, Data}
}

// A Finding is one fault, in the form that `reaper doctor --json` prints.
type Finding struct {
	ID       string   `json:"id"` // stable
	Severity Severity `json:"severity"`
	Group    Group    `json:"group"`
	Target   string   `json:"target"` // empty if it is about the database, or the process
	What     string   `json:"what"`   // one sentence
	Evidence []string `json:"evidence"`
	Mend     string   `json:"mend"`   // the command, or the step, that mends it
	Anchor   string   `json:"anchor"` // the section that explains it
}

// An Unchecked is a check that could not be made.
type Unchecked struct {
	ID     string `json:"id"` // of the check
	Target string `json:"target"`
	Why    string `json:"why"`
}

// A Report is what a doctor has found.
type Report struct {
	Store     string          `json:"store"`
	Endpoint  string          `json:"endpoint"` // where calls go; empty for an embedded store
	Version   string          `json:"version"`
	Now       time.Time       `json:"now"`
	Duration  float64         `json:"duration_seconds"`
	Database  *facts.Database `json:"database"` // nil if the administration did not say
	Targets   []string        `json:"targets"`
	Checks    int             `json:"checks"` // that were made
	Findings  []Finding       `json:"findings"`
	Unchecked []Unchecked     `json:"unchecked"`
}

// Count returns how many findings have a severity.
func (r Report) Count(s Severity) (n int) {
	for _, f := range r.Findings {
		if f.Severity == s {
			n++
		}
	}
	return n
}

// Page is the page on which each finding has a section.
const Page = "docs/doctor.md"

// A kind is what all findings of one id have in common.
type kind struct {
	severity Severity
	group    Group
}

// kinds has a row for each finding that there is.
var kinds = map[string]kind{
	"access-denied":       {Error, Access},
	"credentials-missing": {Error, Access},
	"emulator-accidental": {Warning, Access},
	"emulator-unused":     {Warning, Access},
	"permission-missing":  {Error, Access},
	"store-unreachable":   {Error, Access},
	"store-unusable":      {Error, Access},

	"concurrency-mode":  {Warning, Database},
	"database-deleted":  {Error, Database},
	"database-edition":  {Error, Database},
	"database-missing":  {Error, Database},
	"database-mode":     {Error, Database},
	"protection-off":    {Warning, Database},
	"recovery-off":      {Warning, Database},
	"ttl-policy":        {Error, Database},
	"ttl-policy-nearby": {Warning, Database},

	"kind-empty":          {Warning, Configuration},
	"kind-misspelt":       {Error, Configuration},
	"namespace-left-out":  {Error, Configuration},
	"property-missing":    {Error, Configuration},
	"property-type":       {Error, Configuration},
	"record-differs":      {Warning, Configuration},
	"shards-few":          {Warning, Configuration},
	"target-renamed":      {Warning, Configuration},
	"target-superseded":   {Warning, Configuration},
	"target-swept-twice":  {Error, Configuration},
	"target-unconfigured": {Warning, Configuration},
	"targets-overlap":     {Warning, Configuration},

	"index-empty":        {Error, Indexes},
	"index-exempt":       {Error, Indexes},
	"index-missing":      {Error, Indexes},
	"property-unindexed": {Error, Indexes},

	"clock-drift": {Warning, Clock},
	"clock-skew":  {Error, Clock},
	"store-slow":  {Info, Clock},

	"breaker-blind":       {Info, Processes},
	"breaker-open":        {Error, Processes},
	"breaker-uncounted":   {Warning, Processes},
	"config-drift":        {Warning, Processes},
	"gate-closed":         {Warning, Processes},
	"heartbeat-malformed": {Warning, Processes},
	"limit-used-up":       {Warning, Processes},
	"never-applied":       {Warning, Processes},
	"never-complete":      {Warning, Processes},
	"not-swept":           {Error, Processes},
	"paused":              {Warning, Processes},
	"pushed-back":         {Warning, Processes},
	"sweeps-failing":      {Error, Processes},
	"sweeps-late":         {Warning, Processes},
	"version-drift":       {Warning, Processes},
	"worker-dead":         {Warning, Processes},
	"worker-fault":        {Error, Processes},

	"behind-cursors":     {Warning, Data},
	"breaker-would-trip": {Warning, Data},
	"descendants-left":   {Warning, Data},
	"ids-monotonic":      {Warning, Data},
	"life-too-long":      {Warning, Data},
	"lives-halved":       {Warning, Data},
	"malformed":          {Warning, Data},
	"mismatch":           {Warning, Data},
	"outside":            {Warning, Data},
	"record-lost":        {Warning, Data},
	"record-malformed":   {Error, Data},
	"record-newer":       {Error, Data},
	"record-old-copy":    {Error, Data},
	"records-mixed":      {Warning, Data},
	"refused":            {Warning, Data},
	"strays":             {Warning, Data},
	"suspect":            {Warning, Data},
}

// IDs returns each id that a finding may have, with its severity.
func IDs() map[string]Severity {
	all := map[string]Severity{}
	for id, k := range kinds {
		all[id] = k.severity
	}
	return all
}

// tidy sorts findings by group, severity, id and target, and what was not checked by check and target.
func (r *Report) tidy() {
	groups, severities := Groups(), []Severity{Error, Warning, Info}
	slices.SortStableFunc(r.Findings, func(a, b Finding) int {
		return cmp.Or(slices.Index(groups, a.Group)-slices.Index(groups, b.Group),
			slices.Index(severities, a.Severity)-slices.Index(severities, b.Severity),
			strings.Compare(a.ID, b.ID), strings.Compare(a.Target, b.Target))
	})
	slices.SortStableFunc(r.Unchecked, func(a, b Unchecked) int {
		return cmp.Or(strings.Compare(a.ID, b.ID), strings.Compare(a.Target, b.Target))
	})
}
