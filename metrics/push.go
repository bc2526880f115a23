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
	Tripped          bool // the breaker of the target was open at the end
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
// so the earlier one stays in the group. Whether the breaker is open goes to the group of job
// and target, without a task: it is the same for all, and the next run of any task corrects it.
// If one target cannot be sent, the others are sent anyway. The error never contains the URL's
// password.
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
	send := func(of gauges, labels ...[2]string) error {
		to := push.New(base.String(), cmp.Or(p.Job, namespace)).
			Client(client).
			Format(expfmt.NewFormat(expfmt.TypeTextPlain)).
			Gatherer(of.registry())
		for _, l := range labels {
			to.Grouping(l[0], l[1])
		}
		if user != nil {
			password, _ := user.Password()
			to.BasicAuth(user.Username(), password)
		}
		return to.AddContext(ctx)
	}
	var all []error
	for _, r := range runs {
		target, task := [2]string{"target", r.Target}, [2]string{"task", cmp.Or(p.Task, "0")}
		err := send(r.gauges(), target, task)
		if r.Tripped || r.Result != Failed { // a run that failed may not have read the target's record
			err = errors.Join(err, send(r.breakerGauge(), target))
		}
		if err != nil {
			all = append(all, fmt.Errorf("push metrics of target %s: %w", r.Target, err))
		}
	}
	return errors.Join(all...)
}

// Gauges have no labels but those of their group.
type gauges []gauge

type gauge struct {
	name, help string
	value      float64
}

func (g gauges) registry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	for _, one := range g {
		is := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: one.name, Help: one.help})
		is.Set(one.value)
		reg.MustRegister(is)
	}
	return reg
}

// gauges returns what a run tells of itself.
func (r Run) gauges() gauges {
	list := gauges{
		{"last_sweep_deleted", "Entities that the last run deleted.", float64(r.Deleted)},
		{"last_sweep_expired", "Entities that the last run found due.", float64(r.Expired)},
		{"last_sweep_duration_seconds", "How long the last run took.", r.Duration.Seconds()},
		{"last_sweep_complete", "1 if the last run swept every range to its horizon.", truth(r.Result == Complete)},
		{"apply", applyHelp, truth(r.Apply)},
	}
	if r.Result == Complete || r.Result == Incomplete {
		list = append(list, gauge{"last_success_timestamp_seconds", "When a run last ended without a failure.",
			unix(r.Ended)})
	}
	return list
}

// breakerGauge returns what a run tells of its target, which is the same for all tasks.
func (r Run) breakerGauge() gauges {
	return gauges{{"last_sweep_breaker_open", "1 if the breaker of the target was open when its last run ended.",
		truth(r.Tripped)}}
}
