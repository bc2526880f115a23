package config

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// A Driver names one of the databases that targets can be in.
type Driver string

const (
	Embedded  Driver = "embedded"  // a directory of our own
	Datastore Driver = "datastore" // Firestore in Datastore mode
	Firestore Driver = "firestore" // Firestore in native mode
)

// A Store says which database to open. The zero Store names no database.
type Store struct {
	Driver   Driver
	Dir      string // Embedded
	Project  string // Datastore, Firestore
	Database string // Datastore, Firestore; empty for the project's default database
}

// IsZero reports whether no store was named.
func (s Store) IsZero() bool { return s == Store{} }

// String returns the spec that ParseStore reads.
func (s Store) String() string {
	switch {
	case s.IsZero():
		return ""
	case s.Driver == Embedded:
		return string(s.Driver) + ":" + s.Dir
	case s.Database == "":
		return string(s.Driver) + ":" + s.Project
	default:
		return string(s.Driver) + ":" + s.Project + "/" + s.Database
	}
}

const storeForms = "embedded:DIR, datastore:PROJECT[/DATABASE] or firestore:PROJECT[/DATABASE]"

var (
	// Project ids are lower-case letters, digits and hyphens; very old ones begin with
	// their organisation's domain and a colon. The service checks lengths; emulators
	// accept any.
	projectID  = regexp.MustCompile(`^([a-z0-9][a-z0-9.-]*:)?[a-z][a-z0-9-]{0,61}[a-z0-9]$`)
	databaseID = regexp.MustCompile(`^[a-z][a-z0-9-]{2,61}[a-z0-9]$`)
	uuidLike   = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

	errStoreForm    = errors.New("is not a valid store: write " + storeForms)
	errStoreDir     = errors.New("names no directory: write embedded:DIR")
	errStoreTilde   = errors.New("has a ~ that the shell did not replace: write the whole path, or $HOME")
	errStoreNul     = errors.New("holds a NUL byte, which no path may")
	errStoreProject = errors.New("names no project: write DRIVER:PROJECT[/DATABASE] with a project id of " +
		"lower-case letters, digits and hyphens that begins with a letter")
	errDatabase = errors.New("has an invalid database id: " +
		"write 4 to 63 lower-case letters, digits and hyphens, beginning with a letter; " +
		"leave it out for the default database")
)

// ParseStore reads a spec: embedded:DIR, datastore:PROJECT[/DATABASE] or
// firestore:PROJECT[/DATABASE], split at the first colon. The database
// "(default)" is the same as none: the two services name it differently.
func ParseStore(spec string) (Store, error) {
	s, err := parseStore(spec)
	if err != nil {
		return Store{}, fmt.Errorf("store %s %w", quote(spec), err)
	}
	return s, nil
}

func parseStore(spec string) (Store, error) {
	if spec == "" {
		return Store{}, errEmpty
	}
	driver, rest, ok := strings.Cut(spec, ":")
	if !ok {
		return Store{}, errStoreForm
	}
	switch d := Driver(driver); d {
	case Embedded:
		switch {
		case strings.TrimSpace(rest) == "":
			return Store{}, errStoreDir
		case rest == "~" || strings.HasPrefix(rest, "~/"):
			return Store{}, errStoreTilde
		case strings.ContainsRune(rest, 0):
			return Store{}, errStoreNul
		}
		return Store{Driver: d, Dir: rest}, nil
	case Datastore, Firestore:
		project, database, named := strings.Cut(rest, "/")
		if !projectID.MatchString(project) {
			return Store{}, errStoreProject
		}
		if database == "(default)" {
			named, database = false, ""
		}
		if named && (!databaseID.MatchString(database) || uuidLike.MatchString(database)) {
			return Store{}, errDatabase
		}
		return Store{Driver: d, Project: project, Database: database}, nil
	}
	return Store{}, errStoreForm
}
