package pace_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/reaper-ttl/reaper/internal/engine/pace"
)

// While a file exists, nothing is deleted.
func ExampleOpenGate() {
	dir, err := os.MkdirTemp("", "gate")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	gate := pace.OpenGate(filepath.Join(dir, "maintenance"))
	fmt.Println(gate(context.Background()))
	err = os.WriteFile(filepath.Join(dir, "maintenance"), nil, 0o600)
	fmt.Println(err, gate(context.Background()) != nil)
	// Output:
	// <nil>
	// <nil> true
}
