package metrics_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/metrics"
)

type request struct{ method, path, body, user, password string }

// gateway remembers what was pushed, and answers with the status.
func gateway(t *testing.T, status int) (url string, pushed func() []request) {
	t.Helper()
	ch := make(chan request, 10)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		user, password, _ := r.BasicAuth()
		ch <- request{r.Method, r.URL.EscapedPath(), string(body), user, password}
		w.WriteHeader(status)
	}))
	t.Cleanup(s.Close)
	return s.URL, func() []request {
		var all []request
		for len(ch) > 0 {
			all = append(all, <-ch)
		}
		return all
	}
}

var run = metrics.Run{Target: "sessions", Apply: true, Deleted: 40, Expired: 42, Duration: 1900 * time.Millisecond, Ended: at, Result: metrics.Complete}

func TestPush(t *testing.T) {
	url, pushed := gateway(t, http.StatusAccepted)
	second := run
	second.Target = "carts"
	second.Result = metrics.Failed
	if err := (metrics.Pusher{URL: url + "/", Task: "3"}).Push(context.Background(), run, second); err != nil {
		t.Fatal(err)
	}
	all := pushed()
	if len(all) != 3 {
		t.Fatalf("%d requests, want one for each run, and one for the breaker of a target whose run did not fail", len(all))
	}
	got, breaker := []request{all[0], all[2]}, all[1]
	const want = `# HELP reaper_apply 1 if sweeps delete for real, 0 if they only count.
# TYPE reaper_apply gauge
reaper_apply 1
# HELP reaper_last_success_timestamp_seconds When a run last ended without a failure.
# TYPE reaper_last_success_timestamp_seconds gauge
reaper_last_success_timestamp_seconds 1.7952196505e+09
# HELP reaper_last_sweep_complete 1 if the last run swept every range to its horizon.
# TYPE reaper_last_sweep_complete gauge
reaper_last_sweep_complete 1
# HELP reaper_last_sweep_deleted Entities that the last run deleted.
# TYPE reaper_last_sweep_deleted gauge
reaper_last_sweep_deleted 40
# HELP reaper_last_sweep_duration_seconds How long the last run took.
# TYPE reaper_last_sweep_duration_seconds gauge
reaper_last_sweep_duration_seconds 1.9
# HELP reaper_last_sweep_expired Entities that the last run found due.
# TYPE reaper_last_sweep_expired gauge
reaper_last_sweep_expired 42
`
	// PUT would replace the group and with it the last success.
	if got[0].method != http.MethodPost {
		t.Errorf("the method is %s", got[0].method)
	}
	if !inGroup(got[0].path, "sessions", "3") || !inGroup(got[1].path, "carts", "3") {
		t.Errorf("the groups are %s and %s", got[0].path, got[1].path)
	}
	if got[0].body != want {
		t.Errorf("got\n%s\nwant\n%s", got[0].body, want)
	}
	const closed = `# HELP reaper_last_sweep_breaker_open 1 if the breaker of the target was open when its last run ended.
# TYPE reaper_last_sweep_breaker_open gauge
reaper_last_sweep_breaker_open 0
`
	if breaker.method != http.MethodPost || breaker.path != "/metrics/job/reaper/target/sessions" || breaker.body != closed {
		t.Errorf("of the breaker it pushed %+v", breaker)
	}
	if strings.Contains(got[1].body, "last_success") || !strings.Contains(got[1].body, "reaper_last_sweep_complete 0\n") {
		t.Errorf("of a failed run it pushed\n%s", got[1].body)
	}
}

// inGroup: the client writes the labels of a group in any order, after the job.
func inGroup(path, target, task string) bool {
	rest, ok := strings.CutPrefix(path, "/metrics/job/reaper/")
	return ok && slices.Contains([]string{"target/" + target + "/task/" + task, "task/" + task + "/target/" + target}, rest)
}

func TestPushOfStoppedRun(t *testing.T) {
	url, pushed := gateway(t, http.StatusOK)
	r := run
	r.Result = metrics.Incomplete
	if err := (metrics.Pusher{URL: url}).Push(context.Background(), r); err != nil {
		t.Fatal(err)
	}
	body := pushed()[0].body
	if !strings.Contains(body, "reaper_last_success_timestamp_seconds 1.79") || !strings.Contains(body, "reaper_last_sweep_complete 0\n") {
		t.Errorf("pushed\n%s", body)
	}
}

// A breaker that is open is told in the group that all tasks share, also by a run that failed
// otherwise: the next run of any task, which finds it closed, takes that back.
func TestPushOfAnOpenBreaker(t *testing.T) {
	url, pushed := gateway(t, http.StatusOK)
	for i, result := range []metrics.Result{metrics.Incomplete, metrics.Failed} {
		r := run
		r.Result, r.Tripped = result, true
		if err := (metrics.Pusher{URL: url, Task: string(rune('0' + i))}).Push(context.Background(), r); err != nil {
			t.Fatal(err)
		}
		if got := pushed(); len(got) != 2 || got[1].path != "/metrics/job/reaper/target/sessions" ||
			!strings.Contains(got[1].body, "reaper_last_sweep_breaker_open 1\n") {
			t.Errorf("a run that ended %s pushed %+v", result, got)
		}
	}
}

func TestPushErrors(t *testing.T) {
	refusing, pushed := gateway(t, http.StatusInternalServerError)
	secret := strings.Replace(refusing, "http://", "http://tester:hunter2@", 1)
	second := run
	second.Target = "carts"
	err := metrics.Pusher{URL: secret}.Push(context.Background(), run, second)
	if err == nil || !strings.Contains(err.Error(), "target sessions") || !strings.Contains(err.Error(), "target carts") || !strings.Contains(err.Error(), "500") {
		t.Errorf("the error is %v", err)
	}
	if got := pushed(); len(got) != 4 || got[0].user != "tester" || got[0].password != "hunter2" || got[1].user != "tester" {
		t.Errorf("requests: %+v", got)
	}
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	for _, url := range []string{secret, strings.Replace(closed.URL, "http://", "http://tester:hunter2@", 1), "http://tester:hunter2@[::1"} {
		err := metrics.Pusher{URL: url}.Push(context.Background(), run)
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("no error, or one with the password in it: %v", err)
		}
	}
}

// A gateway that hangs must not keep the job from ending.
func TestPushEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		cancel()
		<-over
	}))
	defer s.Close()
	defer close(over)
	if err := (metrics.Pusher{URL: s.URL}).Push(ctx, run); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
}

func TestTask(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		want string
	}{
		{nil, "0"},
		{map[string]string{"CLOUD_RUN_TASK_INDEX": "7"}, "7"},
		{map[string]string{"JOB_COMPLETION_INDEX": "2"}, "2"},
	} {
		if got := metrics.Task(func(k string) string { return c.env[k] }); got != c.want {
			t.Errorf("%v: %q, want %q", c.env, got, c.want)
		}
	}
}
