package datastore_test

import (
	"fmt"

	sdk "cloud.google.com/go/datastore"

	"github.com/reaper-ttl/reaper/store/datastore"
)

// Keys stand in cursor records and logs as texts that people can read.
func ExampleFormatKey() {
	user := sdk.IDKey("User", 7, nil)
	text := datastore.FormatKey(sdk.NameKey("Session", "s/1842", user))
	fmt.Println(text)
	key, err := datastore.ParseKey("eu", text)
	fmt.Println(key.Namespace, key.Parent.ID, key.Name, err)
	// Output:
	// User/#7/Session/s%2F1842
	// eu 7 s/1842 <nil>
}
