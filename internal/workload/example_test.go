package workload_test

import (
	"fmt"

	"github.com/reaper-ttl/reaper/internal/workload"
)

// The flags of a plan, as a person writes them.
func Example() {
	rate, _ := workload.Rate("20000/s")
	lives, _ := workload.Lives("1h:80%,30d:20%")
	backlog, _ := workload.Count("500M")
	fmt.Printf("%.0f a second, %s, %.0f due\n", rate, workload.Text(lives), backlog)
	_, err := workload.Rate("20000")
	fmt.Println(err)
	// Output:
	// 20000 a second, 1h:80%,30d:20%, 500000000 due
	// "20000" has no unit: write for example 20000/s, 300/m, 50k/h or 5M/d
}
