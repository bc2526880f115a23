package deploy_test

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"google.golang.org/api/iam/v1"
	"google.golang.org/api/run/v1"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/internal/nightly"
)

// What each kustomization makes, in this order.
var kustomizations = map[string][]string{
	"kubernetes/base":             {"Namespace", "ServiceAccount", "ConfigMap", "ConfigMap", "CronJob"},
	"kubernetes/overlays/daemon":  {"Namespace", "ServiceAccount", "ConfigMap", "ConfigMap", "Deployment", "PodDisruptionBudget", "PodMonitor"},
	"kubernetes/overlays/backlog": {"Namespace", "ServiceAccount", "ConfigMap", "ConfigMap", "Job"},
}

// rendered are a kustomization's objects, decoded strictly into their types.
type rendered struct {
	kinds  []string
	texts  map[string][]byte // of each kind, the last one
	pods   map[string]core.PodTemplateSpec
	config []core.ConfigMap
	cron   *batch.CronJob
	job    *batch.Job
	deploy *apps.Deployment
	budget *policy.PodDisruptionBudget
	probe  *monitoring.PodMonitor
}

func build(t *testing.T, dir string) rendered {
	t.Helper()
	objects, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatalf("%s: %v", dir, err)
	}
	r := rendered{texts: map[string][]byte{}, pods: map[string]core.PodTemplateSpec{}}
	for _, o := range objects.Resources() {
		text, err := o.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		kind := o.GetKind()
		r.kinds = append(r.kinds, kind)
		r.texts[kind] = append(r.texts[kind], append([]byte("---\n"), text...)...)
		strict := func(into any) {
			t.Helper()
			if err := yaml.UnmarshalStrict(text, into); err != nil {
				t.Errorf("%s: %s %s: %v", dir, kind, o.GetName(), err)
			}
		}
		switch o.GetApiVersion() + " " + kind {
		case "v1 Namespace":
			strict(new(core.Namespace))
		case "v1 ServiceAccount":
			strict(new(core.ServiceAccount))
		case "v1 ConfigMap":
			var c core.ConfigMap
			strict(&c)
			r.config = append(r.config, c)
		case "batch/v1 CronJob":
			r.cron = new(batch.CronJob)
			strict(r.cron)
			r.pods[kind] = r.cron.Spec.JobTemplate.Spec.Template
		case "batch/v1 Job":
			r.job = new(batch.Job)
			strict(r.job)
			r.pods[kind] = r.job.Spec.Template
		case "apps/v1 Deployment":
			r.deploy = new(apps.Deployment)
			strict(r.deploy)
			r.pods[kind] = r.deploy.Spec.Template
		case "policy/v1 PodDisruptionBudget":
			r.budget = new(policy.PodDisruptionBudget)
			strict(r.budget)
		case "monitoring.coreos.com/v1 PodMonitor":
			r.probe = new(monitoring.PodMonitor)
			strict(r.probe)
		default:
			t.Errorf("%s: nobody checks %s %s", dir, o.GetApiVersion(), kind)
		}
	}
	return r
}

func TestKustomizations(t *testing.T) {
	for dir, kinds := range kustomizations {
		r := build(t, dir)
		slices.Sort(r.kinds)
		if slices.Sort(kinds); !slices.Equal(r.kinds, kinds) {
			t.Errorf("%s makes %v, want %v", dir, r.kinds, kinds)
		}
		if len(r.pods) != 1 {
			t.Errorf("%s makes %d kinds of pods", dir, len(r.pods))
		}
		for kind, pod := range r.pods {
			checkPod(t, dir+" "+kind, pod, r.config)
		}
	}
}

// dockerfile returns the arguments of an instruction of the last stage.
func dockerfile(t *testing.T, instruction string) string {
	t.Helper()
	text, err := os.ReadFile("../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	stage := text[bytes.LastIndex(text, []byte("\nFROM ")):]
	found := regexp.MustCompile(`(?m)^` + instruction + ` (.*)$`).FindSubmatch(stage)
	if found == nil {
		t.Fatalf("the Dockerfile has no %s", instruction)
	}
	return string(found[1])
}

// checkPod holds a pod to what the restricted profile asks for and more, and to
// the image that the Dockerfile makes.
func checkPod(t *testing.T, where string, pod core.PodTemplateSpec, configs []core.ConfigMap) {
	t.Helper()
	must := func(ok bool, what string) {
		t.Helper()
		if !ok {
			t.Errorf("%s: %s", where, what)
		}
	}
	yes := func(b *bool) bool { return b != nil && *b }
	no := func(b *bool) bool { return b != nil && !*b }
	spec := pod.Spec
	must(no(spec.EnableServiceLinks), "services' variables are injected")
	must(no(spec.AutomountServiceAccountToken), "the cluster's token is mounted")
	must(spec.ServiceAccountName == "reaper", "it runs under another account")
	must(spec.TerminationGracePeriodSeconds != nil && time.Duration(*spec.TerminationGracePeriodSeconds)*time.Second > 2*8*time.Second, "it is killed before its own grace is over")
	sc := spec.SecurityContext
	if sc == nil || sc.SeccompProfile == nil || sc.RunAsUser == nil || sc.RunAsGroup == nil || len(spec.Containers) != 1 {
		t.Errorf("%s: no security context, or not one container", where)
		return
	}
	must(yes(sc.RunAsNonRoot), "it may run as root")
	must(sc.SeccompProfile.Type == core.SeccompProfileTypeRuntimeDefault, "no seccomp profile")
	user := strconv.FormatInt(*sc.RunAsUser, 10) + ":" + strconv.FormatInt(*sc.RunAsGroup, 10)
	must(user == dockerfile(t, "USER"), "the user is not that of the image")
	c := spec.Containers[0]
	must(strings.HasPrefix(dockerfile(t, "ENTRYPOINT"), `["/usr/local/bin/reaper"]`) && len(c.Command) == 0, "the image's entry point does not run")
	must(regexp.MustCompile(`.+/reaper:v[0-9.]+$`).MatchString(c.Image), "the image has no version: "+c.Image)
	for _, p := range c.Ports {
		must(strconv.Itoa(int(p.ContainerPort)) == dockerfile(t, "EXPOSE"), "the port is not that of the image")
	}
	must(!c.Resources.Requests.Cpu().IsZero() && !c.Resources.Requests.Memory().IsZero() && !c.Resources.Limits.Memory().IsZero(), "no resources")
	own := c.SecurityContext
	if own == nil || own.Capabilities == nil {
		t.Errorf("%s: the container has no security context", where)
		return
	}
	must(no(own.AllowPrivilegeEscalation) && yes(own.ReadOnlyRootFilesystem), "it may escalate, or write to its root")
	must(slices.Equal(own.Capabilities.Drop, []core.Capability{"ALL"}) && len(own.Capabilities.Add) == 0, "it has capabilities")

	settings, targets := map[string]string{}, ""
	for _, from := range c.EnvFrom {
		maps.Copy(settings, named(t, configs, from.ConfigMapRef.Name).Data)
	}
	for _, e := range c.Env {
		settings[e.Name] = e.Value
	}
	for _, v := range spec.Volumes {
		targets = named(t, configs, v.ConfigMap.Name).Data["reaper.yaml"]
	}
	must(len(c.VolumeMounts) == 1 && settings["REAPER_CONFIG"] == c.VolumeMounts[0].MountPath+"/reaper.yaml", "REAPER_CONFIG does not name the mounted targets file")
	checkSettings(t, where, settings, targets)
}

func named(t *testing.T, all []core.ConfigMap, name string) core.ConfigMap {
	t.Helper()
	for _, c := range all {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("no ConfigMap %s", name)
	return core.ConfigMap{}
}

// checkSettings lets reaper itself read what it would get.
func checkSettings(t *testing.T, where string, settings map[string]string, targets string) {
	t.Helper()
	known, flags := map[string]string{}, map[string]string{}
	for _, s := range config.Settings() {
		known[s.Env] = s.Flag
	}
	for name, value := range settings {
		if flag, ok := known[name]; !ok {
			t.Errorf("%s: there is no setting %s", where, name)
		} else {
			flags[flag] = value
		}
	}
	c, err := config.Load(config.Sources{Flags: flags, Open: func(string) (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(targets)), nil }})
	switch {
	case err != nil:
		t.Errorf("%s: %v", where, err)
	case c.RequireStore() != nil || c.RequireTargets() != nil:
		t.Errorf("%s: no store or no targets", where)
	case c.Apply:
		t.Errorf("%s deletes as it comes: somebody will apply it to have a look", where)
	case c.ShutdownGrace >= 10*time.Second:
		t.Errorf("%s: the grace is longer than Cloud Run's", where)
	}
}

func TestCronJob(t *testing.T) {
	c := build(t, "kubernetes/base").cron.Spec
	j := c.JobTemplate.Spec
	if c.ConcurrencyPolicy != batch.ForbidConcurrent || c.StartingDeadlineSeconds == nil || c.SuccessfulJobsHistoryLimit == nil || c.FailedJobsHistoryLimit == nil {
		t.Errorf("got %+v", c)
	}
	if j.BackoffLimit == nil || *j.BackoffLimit != 0 || j.TTLSecondsAfterFinished == nil || j.ActiveDeadlineSeconds == nil {
		t.Errorf("got %+v", j)
	}
	if j.Template.Spec.RestartPolicy != core.RestartPolicyNever {
		t.Errorf("it restarts: %s", j.Template.Spec.RestartPolicy)
	}
	most := maxDuration(t, j.Template.Spec.Containers[0].Args)
	if most >= 5*time.Minute || time.Duration(*j.ActiveDeadlineSeconds)*time.Second <= most+30*time.Second {
		t.Errorf("sweeps of %v do not fit between %s and %d s", most, c.Schedule, *j.ActiveDeadlineSeconds)
	}
}

func TestDaemon(t *testing.T) {
	r := build(t, "kubernetes/overlays/daemon")
	d := r.deploy.Spec
	labels := d.Template.Labels
	for name, selector := range map[string]map[string]string{
		"deployment": d.Selector.MatchLabels, "budget": r.budget.Spec.Selector.MatchLabels, "monitor": r.probe.Spec.Selector.MatchLabels,
		"spread": d.Template.Spec.TopologySpreadConstraints[0].LabelSelector.MatchLabels,
	} {
		for k, v := range selector {
			if labels[k] != v {
				t.Errorf("the %s selects %s=%s, and pods have %q", name, k, v, labels[k])
			}
		}
		if len(selector) == 0 {
			t.Errorf("the %s selects everything", name)
		}
	}
	if labels[r.probe.Spec.JobLabel] != "reaper" {
		t.Errorf("the label %q would give the job its name", r.probe.Spec.JobLabel)
	}
	c := d.Template.Spec.Containers[0]
	if d.Replicas == nil || *d.Replicas != 2 || len(c.Ports) != 1 {
		t.Fatalf("got %+v", d)
	}
	port := c.Ports[0].Name
	for _, e := range r.probe.Spec.PodMetricsEndpoints {
		if e.Port == nil || *e.Port != port || e.Path != "/metrics" {
			t.Errorf("the monitor asks for %+v", e)
		}
	}
	if c.LivenessProbe.HTTPGet.Path != "/healthz" || c.ReadinessProbe.HTTPGet.Path != "/readyz" ||
		c.LivenessProbe.HTTPGet.Port.StrVal != port || c.ReadinessProbe.HTTPGet.Port.StrVal != port {
		t.Errorf("the probes are %+v and %+v", c.LivenessProbe, c.ReadinessProbe)
	}
	for _, s := range config.Settings() {
		if s.Env == "REAPER_LISTEN" && s.Default != ":"+strconv.Itoa(int(c.Ports[0].ContainerPort)) {
			t.Errorf("reaper listens on %s", s.Default)
		}
	}
}

func TestBacklog(t *testing.T) {
	j := build(t, "kubernetes/overlays/backlog").job.Spec
	if j.Parallelism == nil || *j.Parallelism < 2 || j.Completions == nil || *j.Completions != *j.Parallelism ||
		j.CompletionMode == nil || *j.CompletionMode != batch.IndexedCompletion || j.BackoffLimit == nil || *j.BackoffLimit == 0 {
		t.Errorf("got %+v", j)
	}
	c := j.Template.Spec.Containers[0]
	if !slices.Contains(c.Args, "--fail-incomplete") {
		t.Errorf("a pod that was stopped before the end would count as done: %v", c.Args)
	}
	// It fails at once if the breaker is open (exit code 4) or its settings are wrong (2), is tried again for every other
	// reason, and not counted if its node was drained.
	p := j.PodFailurePolicy
	if p == nil || len(p.Rules) != 2 || p.Rules[0].Action != batch.PodFailurePolicyActionFailJob {
		t.Fatalf("it would be tried again although the breaker is open: %+v", p)
	}
	if on := p.Rules[0].OnExitCodes; on == nil || on.ContainerName == nil || *on.ContainerName != c.Name ||
		on.Operator != batch.PodFailurePolicyOnExitCodesOpIn || !slices.Equal(on.Values, []int32{2, 4}) ||
		j.Template.Spec.RestartPolicy != core.RestartPolicyNever {
		t.Errorf("it fails at once for %+v, with the restart policy %s", on, j.Template.Spec.RestartPolicy)
	}
	if on := p.Rules[1].OnPodConditions; p.Rules[1].Action != batch.PodFailurePolicyActionIgnore || len(on) != 1 ||
		on[0].Type != core.DisruptionTarget || on[0].Status != core.ConditionTrue {
		t.Errorf("a drained node counts: %+v", p.Rules[1])
	}
}

func TestCloudRun(t *testing.T) {
	var job run.Job
	decode(t, "cloudrun/job.yaml", &job)
	if job.ApiVersion != "run.googleapis.com/v1" || job.Kind != "Job" || job.Metadata.Name != "reaper" {
		t.Errorf("got %+v", job)
	}
	exec := job.Spec.Template.Spec
	task := exec.Template.Spec
	if exec.Parallelism < 2 || exec.TaskCount != exec.Parallelism || len(task.Containers) != 1 || !strings.HasPrefix(task.ServiceAccountName, "reaper@") {
		t.Fatalf("got %+v", exec)
	}
	c := task.Containers[0]
	if most := maxDuration(t, c.Args); time.Duration(task.TimeoutSeconds)*time.Second <= most+30*time.Second {
		t.Errorf("a task of %v is ended after %d s", most, task.TimeoutSeconds)
	}
	if len(c.Command) != 0 || !strings.HasSuffix(c.Image, "/reaper:"+imageTag(t)) {
		t.Errorf("command %v, image %s", c.Command, c.Image)
	}
	settings := map[string]string{}
	for _, e := range c.Env {
		settings[e.Name] = e.Value
	}
	item := task.Volumes[0].Secret.Items[0]
	if at := c.VolumeMounts[0].MountPath + "/" + item.Path; settings["REAPER_CONFIG"] != at {
		t.Errorf("the targets file is at %s", at)
	}
	checkSettings(t, "cloudrun/job.yaml", settings, config.Example)

	var role iam.Role
	decode(t, "cloudrun/role.yaml", &role)
	want := []string{"datastore.databases.get", "datastore.entities.create", "datastore.entities.delete", "datastore.entities.get",
		"datastore.entities.list", "datastore.entities.update"}
	if !slices.Equal(role.IncludedPermissions, want) || role.Stage != "GA" {
		t.Errorf("the role is %+v", role)
	}
}

// imageTag is the version that the Kubernetes files name.
func imageTag(t *testing.T) string {
	t.Helper()
	for _, pod := range build(t, "kubernetes/base").pods {
		_, tag, _ := strings.Cut(pod.Spec.Containers[0].Image, ":")
		return tag
	}
	t.Fatal("no pod")
	return ""
}

func maxDuration(t *testing.T, args []string) time.Duration {
	t.Helper()
	i := slices.Index(args, "--max-duration")
	if i < 0 || i+1 == len(args) {
		t.Fatalf("no --max-duration in %v", args)
	}
	d, err := time.ParseDuration(args[i+1])
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// args.json has the arguments of every manifest, so that the command's own tests
// can parse them without knowing Kubernetes.
func TestArgs(t *testing.T) {
	text, err := os.ReadFile("args.json")
	if err != nil {
		t.Fatal(err)
	}
	var want map[string][]string
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	var cloudRun run.Job
	decode(t, "cloudrun/job.yaml", &cloudRun)
	got := map[string][]string{
		"kubernetes/base/cronjob.yaml":               build(t, "kubernetes/base").cron.Spec.JobTemplate.Spec.Template.Spec.Containers[0].Args,
		"kubernetes/overlays/daemon/deployment.yaml": build(t, "kubernetes/overlays/daemon").deploy.Spec.Template.Spec.Containers[0].Args,
		"kubernetes/overlays/backlog/job.yaml":       build(t, "kubernetes/overlays/backlog").job.Spec.Template.Spec.Containers[0].Args,
		"cloudrun/job.yaml":                          cloudRun.Spec.Template.Spec.Template.Spec.Containers[0].Args,
	}
	if !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("the manifests have %v, args.json has %v", got, want)
	}
}

func decode(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err == nil {
		err = yaml.UnmarshalStrict(text, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// The API's own schemas also know which names are allowed. They know neither
// enumerations nor required fields; the tests above look at those that matter.
const validator = "sigs.k8s.io/kubectl-validate@v0.0.4"

func TestAPISchemas(t *testing.T) {
	if !nightly.Run() {
		t.Skip("building kubectl-validate takes minutes; make nightly does it")
	}
	bin := t.TempDir()
	install := exec.Command("go", "install", validator)
	install.Env = append(os.Environ(), "GOBIN="+bin, "GOFLAGS=")
	if out, err := install.CombinedOutput(); err != nil {
		t.Skipf("%s cannot be built here: %v\n%s", validator, err, out)
	}
	validate := func(name string, text []byte) ([]byte, error) {
		file := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return exec.Command(filepath.Join(bin, "kubectl-validate"), "--version", "1.30", file).CombinedOutput()
	}
	for dir := range kustomizations {
		for kind, text := range build(t, dir).texts {
			if kind == "PodMonitor" {
				continue // not of the API itself; its own type has read it strictly
			}
			if out, err := validate(kind+".yaml", text); err != nil {
				t.Errorf("%s %s: %v\n%s", dir, kind, err, out)
			}
		}
	}
	broken := bytes.Replace(build(t, "kubernetes/base").texts["CronJob"], []byte("\n  name: reaper\n"), []byte("\n  name: Re_aper\n"), 1)
	if out, err := validate("broken.yaml", broken); err == nil {
		t.Errorf("it takes anything:\n%s", out)
	}
}
