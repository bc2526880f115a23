package metrics

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/push"
	"github.com/prometheus/common/expfmt"
)

// A Run is the outcome of a one-shot sweep of one target.
type Run struct {
	Target           string
	Apply            bool
	Deleted, Expired int64
	Duration         time.Duration
	Ended            time.Time
	Result           Result
}

// A Pusher sends runs to a Pushgateway.
type Pusher struct {
	URL    string       // with user and password, if it wants them
	Job    string       // empty means reaper
	Task   string       // tells parallel tasks apart; see [Task]
	Client *http.Client // nil means one that gives up after ten seconds
}

// Task names this task among parallel ones of the same job, from what Cloud Run
// and Kubernetes (of an indexed Job) put into the environment; "0" if it is alone.
func Task(getenv func(string) string) string {
	return cmp.Or(getenv("CLOUD_RUN_TASK_INDEX"), getenv("JOB_COMPLETION_INDEX"), "0")
}

// Push sends each run to a group of its own: job, target and task. It adds to
// the group (POST) instead of replacing it. A failed run has no time of the last success,
// so the earlier one stays in the group. If one target cannot be sent, the others are sent
// anyway. The error never contains the URL's password.
func (p Pusher) Push(ctx context.Context, runs ...Run) error {
	base, err := url.Parse(p.URL)
	if err != nil {
		return errors.New("push metrics: the URL of the Pushgateway does not parse") // the reason would quote it
	}
	user := base.User
	base.User = nil
	client := p.Client
	if client == nil {
		client = &http.Client{Timeout: 10 * time.Second}
	}
	var all []error
	for _, r := range runs {
		to := push.New(base.String(), cmp.Or(p.Job, namespace)).
			Grouping("target", r.Target).
			Grouping("task", cmp.Or(p.Task, "0")).
			Client(client).
			Format(expfmt.NewFormat(expfmt.TypeTextPlain)).
			Gatherer(r.registry())
		if user != nil {
			password, _ := user.Password()
			to.BasicAuth(user.Username(), password)
		}
		if err := to.AddContext(ctx); err != nil {
			all = append(all, fmt.Errorf("push metrics of target %s: %w", r.Target, err))
		}
	}
	return errors.Join(all...)
}

func (r Run) registry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	set := func(name, help string, v float64) {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help})
		g.Set(v)
		reg.MustRegister(g)
	}
	set("last_sweep_deleted", "Entities that the last run deleted.", float64(r.Deleted))
	set("last_sweep_expired", "Entities that the last run found due.", float64(r.Expired))
	set("last_sweep_duration_seconds", "How long the last run took.", r.Duration.Seconds())
	set("last_sweep_complete", "1 if the last run swept every range to its horizon.", truth(r.Result == Complete))
	set("apply", applyHelp, truth(r.Apply))
	if r.Result == Complete || r.Result == Incomplete {
		set("last_success_timestamp_seconds", "When a run last ended without a failure.", unix(r.Ended))
	}
	return reg
}
