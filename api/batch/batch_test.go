package batch_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api/kindtest"
)

func TestJob_ChecksItsPolicies(t *testing.T) {
	t.Parallel()
	const indexed = "  completionMode: Indexed\n  completions: 5\n  parallelism: 5\n  selector"
	kindtest.Create(t, "Job", soundJob, []kindtest.Case{
		{"indexed", []string{"  selector", indexed}, nil},
		{"long name", []string{"name: j,", "name: a123456789-a123456789-a123456789-a123456789-a123456789-a1234567,",
			"  selector", indexed}, []string{"Invalid metadata.name"}},
		{"mode", []string{"  selector", "  completionMode: Some\n  selector"},
			[]string{"NotSupported spec.completionMode"}},
		{"no selector", []string{"  selector: {matchLabels: {a: b}}\n", ""},
			[]string{"Required spec.selector", "Invalid spec.template.metadata.labels"}},
		{"success policy without rules", []string{"  selector", "  successPolicy: {rules: []}\n" + indexed},
			[]string{"Required spec.successPolicy.rules"}},
		{"success policy", []string{"  selector", "  successPolicy: {rules: [{succeededIndexes: 0-2, " +
			"succeededCount: 4}, {}, {succeededIndexes: '3,1'}, {succeededIndexes: '9'}]}\n" + indexed}, []string{
			"Invalid spec.successPolicy.rules[0].succeededCount", "Required spec.successPolicy.rules[1]",
			"Invalid spec.successPolicy.rules[2].succeededIndexes",
			"Invalid spec.successPolicy.rules[3].succeededIndexes"}},
		{"success policy of others", []string{"  selector", "  successPolicy: {rules: [{succeededCount: 1}]}\n  " +
			"selector"}, []string{"Invalid spec.successPolicy"}},
		{"exit codes", []string{"  selector", "  podFailurePolicy: {rules: [{action: FailIndex, onExitCodes: " +
			"{containerName: none, operator: '', values: [3, 2, 2]}}]}\n  selector"}, []string{
			"Invalid spec.podFailurePolicy.rules[0].action",
			"Invalid spec.podFailurePolicy.rules[0].onExitCodes.containerName",
			"Required spec.podFailurePolicy.rules[0].onExitCodes.operator",
			"Duplicate spec.podFailurePolicy.rules[0].onExitCodes.values[2]",
			"Invalid spec.podFailurePolicy.rules[0].onExitCodes.values"}},
		{"replacement with failure policy", []string{"  selector", "  podReplacementPolicy: TerminatingOrFailed\n " +
			" podFailurePolicy: {rules: [{action: Ignore, onPodConditions: [{type: X}]}]}\n  selector"},
			[]string{"NotSupported spec.podReplacementPolicy"}},
		{"managed by", []string{"  selector", "  managedBy: me\n  selector"}, []string{"Invalid spec.managedBy"}},
	})
	const suspended = "  suspend: true\n  selector"
	r := kindtest.Of(t, "Job")
	old := kindtest.Decode(t, r, kindtest.Changed(t, soundJob, []string{"  selector", suspended}))
	changed := kindtest.Decode(t, r,
		kindtest.Changed(t, soundJob, []string{"  selector", suspended, "      restartPolicy",
			"      nodeSelector: {zone: a}\n      restartPolicy", "image: busybox",
			"image: busybox, resources: {requests: {cpu: 1}}"}))
	require.Empty(t, r.ValidateUpdate(changed, old), "a suspended job may change its scheduling and resources")
	other := kindtest.Decode(t, r,
		kindtest.Changed(t, soundJob, []string{"  selector", suspended, "image: busybox", "image: other"}))
	require.Equal(t, []string{"Invalid spec.template.spec"}, kindtest.Refusals(r.ValidateUpdate(other, old)))
}

func TestJob_StatusRejectsInvalidTransitions(t *testing.T) {
	t.Parallel()
	const (
		start    = "startTime: 2026-01-01T00:00:00Z, "
		end      = "completionTime: 2026-01-01T00:01:00Z, "
		met      = "{type: SuccessCriteriaMet, status: 'True'}"
		complete = "{type: Complete, status: 'True'}"
		target   = "{type: FailureTarget, status: 'True'}"
		failed   = "{type: Failed, status: 'True'}"
		succeeds = "{" + start + end + "conditions: [" + met + ", " + complete + "]}"
	)
	for name, c := range map[string]struct {
		spec, old, status string
		want              []string
	}{
		"completes": {"{}", "{" + start + "active: 1}", succeeds, []string{}},
		"fails": {"{}", "{}", "{" + start + "conditions: [" + target + ", " + failed +
			"]}", []string{}},
		"both": {"{}", "{}", "{" + start + end + "conditions: [" + complete + ", " + failed + "]}",
			[]string{"Invalid status.conditions", "Invalid status.conditions", "Invalid status.conditions"}},
		"fails unannounced": {"{}", "{}", "{" + start + "conditions: [" + failed + "]}",
			[]string{"Invalid status.conditions"}},
		"completes unannounced": {"{}", "{}", "{" + start + end + "conditions: [" + complete + "]}",
			[]string{"Invalid status.conditions"}},
		"without times": {"{}", "{}", "{conditions: [" + met + ", " + complete + "]}",
			[]string{"Required status.completionTime", "Required status.startTime"}},
		"ends before it begins": {"{}", "{}", "{startTime: 2027-01-01T00:00:00Z, " + end + "conditions: [" + met +
			", " + complete + "]}", []string{"Invalid status.completionTime"}},
		"with pods left": {"{}", "{}", "{" + start + end + "active: 1, terminating: 1, " +
			"uncountedTerminatedPods: {failed: [a]}, conditions: [" + met + ", " + complete + "]}",
			[]string{"Invalid status.active", "Invalid status.terminating", "Invalid status.uncountedTerminatedPods"}},
		"taken back": {"{}", succeeds, "{" + start + "}",
			[]string{"Invalid status.conditions", "Invalid status.conditions"}},
		"counters fall": {"{}", "{failed: 2, succeeded: 2}", "{failed: 1, succeeded: 1}",
			[]string{"Invalid status.failed", "Invalid status.succeeded"}},
		"elastic": {"{completionMode: Indexed, completions: 2, parallelism: 2}", "{succeeded: 2}",
			"{succeeded: 1}", []string{}},
		"ready": {"{}", "{}", "{active: 1, ready: 2}", []string{"Invalid status.ready"}},
		"uncounted twice": {"{}", "{}", "{uncountedTerminatedPods: {succeeded: [a, ''], failed: [a]}}",
			[]string{"Invalid status.uncountedTerminatedPods.succeeded[1]",
				"Duplicate status.uncountedTerminatedPods.failed[0]"}},
		"started again": {"{}", "{" + start + "}", "{startTime: 2026-02-01T00:00:00Z}",
			[]string{"Invalid status.startTime"}},
		"indexes": {"{completionMode: Indexed, completions: 5, backoffLimitPerIndex: 1}", "{}",
			"{completedIndexes: '0-2', failedIndexes: '2,4'}", []string{"Invalid status.failedIndexes"}},
		"no such index": {"{completionMode: Indexed, completions: 5, backoffLimitPerIndex: 1}", "{}",
			"{completedIndexes: '2-9', failedIndexes: '4,3'}",
			[]string{"Invalid status.completedIndexes", "Invalid status.failedIndexes"}},
		"indexes of others": {"{completions: 5}", "{}", "{completedIndexes: '1', failedIndexes: '2'}",
			[]string{"Invalid status.completedIndexes", "Invalid status.failedIndexes"}},
		"stored already": {"{}", "{active: 1, ready: 2, conditions: [" + complete + "]}",
			"{active: 1, ready: 2, succeeded: 1, conditions: [" + complete + "]}", []string{}},
	} {
		r := kindtest.Of(t, "Job")
		old, obj := kindtest.Decode(t, r, "spec: "+c.spec+"\nstatus: "+c.old), kindtest.Decode(t, r, "spec: "+c.spec+
			"\nstatus: "+c.status)
		require.ElementsMatch(t, c.want, kindtest.Refusals(r.Status.Validate(obj, old)), name)
	}
}

func TestJob_ValidateRejects(t *testing.T) {
	t.Parallel()
	kindtest.Create(t, "Job", soundJob, []kindtest.Case{
		{"somebody's selector", []string{"manualSelector: true", "manualSelector: false"},
			[]string{"Required spec.template.metadata.labels[controller-uid]",
				"Required spec.template.metadata.labels[job-name]",
				"Required spec.template.metadata.labels[batch.kubernetes.io/controller-uid]",
				"Required spec.template.metadata.labels[batch.kubernetes.io/job-name]", "Invalid spec.selector"}},
		{"many indexes", []string{"  selector", "  completionMode: Indexed\n  completions: 100001\n  parallelism: " +
			"10001\n  backoffLimitPerIndex: 1\n  selector"},
			[]string{"Required spec.maxFailedIndexes", "Invalid spec.parallelism"}},
		{"restart always", []string{"restartPolicy: Never", "restartPolicy: Always"},
			[]string{"Required spec.template.spec.restartPolicy"}},
		{"selector", []string{"matchLabels: {a: b}", "matchLabels: {a: c}"},
			[]string{"Invalid spec.template.metadata.labels"}},
		{"parallelism", []string{"  selector", "  parallelism: -1\n  selector"}, []string{"Invalid spec.parallelism"}},
		{"backoff", []string{"  selector", "  backoffLimit: -1\n  selector"}, []string{"Invalid spec.backoffLimit"}},
		{"indexed without completions",
			[]string{"  selector", "  parallelism: 2\n  completionMode: Indexed\n  selector"},
			[]string{"Required spec.completions"}},
		{"per index", []string{"  selector", "  backoffLimitPerIndex: 1\n  selector"},
			[]string{"Invalid spec.backoffLimitPerIndex"}},
		{"failure policy", []string{"  selector", "  podFailurePolicy: {rules: [{action: Panic, onExitCodes: " +
			"{operator: In, values: [0]}}]}\n  selector"},
			[]string{"NotSupported spec.podFailurePolicy.rules[0].action",
				"Invalid spec.podFailurePolicy.rules[0].onExitCodes.values[0]"}},
	})
	kindtest.Update(t, "Job", soundJob, []kindtest.Case{
		{"image", []string{"image: busybox", "image: other"}, []string{"Invalid spec.template"}},
		{"completions", []string{"  selector", "  completions: 4\n  selector"}, []string{"Invalid spec.completions"}},
		{"parallelism", []string{"  selector", "  completions: 1\n  parallelism: 4\n  selector"}, nil},
	})
}

func TestJob_CreateGeneratesItsSelector(t *testing.T) {
	t.Parallel()
	r := kindtest.Of(t, "Job")
	j := kindtest.Decode(t, r,
		"metadata: {name: j}\nspec: {template: {spec: {restartPolicy: Never, containers: [{name: a, "+
			"image: b}]}}}").(*batchv1.Job)
	j.UID = types.UID("u1")
	r.PrepareCreate(j)
	require.Empty(t, r.Validate(j))
	require.Equal(t, map[string]string{"batch.kubernetes.io/controller-uid": "u1"}, j.Spec.Selector.MatchLabels)
	require.Equal(t, "j", j.Spec.Template.Labels["job-name"])
	require.Equal(t, ptr.To[int32](6), j.Spec.BackoffLimit)
	require.Equal(t, []any{"j", "Running", "0/1", ""}, r.Cells(j)[:4])
}

func TestCronJob_ValidateRejects(t *testing.T) {
	t.Parallel()
	const cron = `
metadata: {name: c}
spec:
  schedule: "*/5 * * * *"
  timeZone: Europe/Berlin
  jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: a, image: b}]}}}}
`
	kindtest.Create(t, "CronJob", cron, []kindtest.Case{
		{"schedule", []string{"*/5 * * * *", "often"}, []string{"Invalid spec.schedule"}},
		{"no schedule", []string{"*/5 * * * *", ""}, []string{"Required spec.schedule"}},
		{"zone in schedule", []string{"*/5 * * * *", "TZ=UTC */5 * * * *"}, []string{"Invalid spec.schedule"}},
		{"long name", []string{"name: c}", "name: a123456789-a123456789-a123456789-a123456789-a12345678}"},
			[]string{"Invalid metadata.name"}},
		{"selector", []string{"spec: {template: {spec: {restart", "spec: {selector: {matchLabels: {a: b}}, " +
			"template: {spec: {restart"}, []string{"Invalid spec.jobTemplate.spec.selector"}},
		{"manual selector", []string{"spec: {template: {spec: {restart", "spec: {manualSelector: true, template: " +
			"{spec: {restart"}, []string{"NotSupported spec.jobTemplate.spec.manualSelector"}},
		{"zone of a path", []string{"Europe/Berlin", "Europe/../Berlin"}, []string{"Invalid spec.timeZone"}},
		{"no zone", []string{"Europe/Berlin", "''"}, []string{"Invalid spec.timeZone"}},
		{"the zone here", []string{"Europe/Berlin", "Local"}, []string{"Invalid spec.timeZone"}},
		{"limits", []string{"  schedule", "  startingDeadlineSeconds: -1\n  successfulJobsHistoryLimit: -1\n  " +
			"failedJobsHistoryLimit: -1\n  schedule"},
			[]string{"Invalid spec.startingDeadlineSeconds", "Invalid spec.successfulJobsHistoryLimit",
				"Invalid spec.failedJobsHistoryLimit"}},
		{"zone alone", []string{"*/5 * * * *", "TZ=UTC"}, []string{"Invalid spec.schedule", "Invalid spec.schedule"}},
		{"zone", []string{"Europe/Berlin", "Europe/Atlantis"}, []string{"Invalid spec.timeZone"}},
		{"concurrency", []string{"  jobTemplate", "  concurrencyPolicy: Maybe\n  jobTemplate"},
			[]string{"NotSupported spec.concurrencyPolicy"}},
		{"job", []string{"Never", "Always"}, []string{"Required spec.jobTemplate.spec.template.spec.restartPolicy"}},
	})
}

const soundJob = `
metadata: {name: j, namespace: default}
spec:
  manualSelector: true
  selector: {matchLabels: {a: b}}
  template:
    metadata: {labels: {a: b}}
    spec:
      restartPolicy: Never
      containers: [{name: main, image: busybox}]
`
