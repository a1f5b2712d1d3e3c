package batch

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
)

func jobHas(j *batchv1.Job, kind batchv1.JobConditionType) bool {
	return slices.ContainsFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Type == kind && c.Status == corev1.ConditionTrue
	})
}

func jobFinished(j *batchv1.Job) bool {
	return jobHas(j, batchv1.JobComplete) || jobHas(j, batchv1.JobFailed)
}

// jobChange is a write to a job's status. Other controllers than ours may write it (spec.managedBy), so the server
// enforces the invariants that clients rely on (KEP-4368). A rule applies only if one of its fields has changed: a
// stored status may stay as it is.
type jobChange struct {
	is, was *batchv1.Job
	errs    field.ErrorList
}

func validateJobStatus(j, old *batchv1.Job) field.ErrorList {
	c := jobChange{is: j, was: old}
	c.numbers()
	c.uncounted()
	c.conditions()
	c.times()
	c.finished()
	c.indexes()
	return c.errs
}

func (c *jobChange) add(errs ...*field.Error) { c.errs = append(c.errs, errs...) }

// reject adds an error about the conditions.
func (c *jobChange) reject(detail string) {
	c.add(field.Invalid(field.NewPath("status", "conditions"), field.OmitValueType{}, detail))
}

// turned reports whether one of the conditions has become true, or is no longer true.
func (c *jobChange) turned(kinds ...batchv1.JobConditionType) bool {
	return slices.ContainsFunc(kinds, func(kind batchv1.JobConditionType) bool {
		return jobHas(c.is, kind) != jobHas(c.was, kind)
	})
}

func (c *jobChange) numbers() {
	path, is, was := field.NewPath("status"), &c.is.Status, &c.was.Status
	c.add(validate.Counts(path, []validate.Count{{"active", is.Active}, {"succeeded", is.Succeeded},
		{"failed", is.Failed}})...)
	c.add(validate.NonNegativePtr(path.Child("ready"), is.Ready)...)
	c.add(validate.NonNegativePtr(path.Child("terminating"), is.Terminating)...)
	if is.Ready != nil && *is.Ready > is.Active &&
		(is.Active != was.Active || !equality.Semantic.DeepEqual(is.Ready, was.Ready)) {
		c.add(field.Invalid(path.Child("ready"), *is.Ready, "cannot set more ready pods than active"))
	}
	if is.Failed < was.Failed {
		c.add(field.Invalid(path.Child("failed"), is.Failed, "cannot decrease the failed counter"))
	}
	// An indexed job may be scaled down. Its successes beyond the new end are dropped.
	elastic := isIndexed(c.is) && equality.Semantic.DeepEqual(c.is.Spec.Completions, c.is.Spec.Parallelism)
	if is.Succeeded < was.Succeeded && !elastic {
		c.add(field.Invalid(path.Child("succeeded"), is.Succeeded, "cannot decrease the succeeded counter"))
	}
}

func (c *jobChange) uncounted() {
	pods := c.is.Status.UncountedTerminatedPods
	if pods == nil {
		return
	}
	path, seen := field.NewPath("status", "uncountedTerminatedPods"), map[types.UID]bool{}
	check := func(list []types.UID, path *field.Path) {
		for i, uid := range list {
			if uid == "" {
				c.add(field.Invalid(path.Index(i), uid, "must not be empty"))
			} else if seen[uid] {
				c.add(field.Duplicate(path.Index(i), uid))
			}
			seen[uid] = true
		}
	}
	check(pods.Succeeded, path.Child("succeeded"))
	check(pods.Failed, path.Child("failed"))
}

// conditions checks that a job ends in exactly one of two ways. An interim condition announces each of them, and
// neither can be reverted.
func (c *jobChange) conditions() {
	complete, failed := jobHas(c.is, batchv1.JobComplete), jobHas(c.is, batchv1.JobFailed)
	failing, succeeds := jobHas(c.is, batchv1.JobFailureTarget), jobHas(c.is, batchv1.JobSuccessCriteriaMet)
	if complete && failed && c.turned(batchv1.JobComplete, batchv1.JobFailed) {
		c.reject("cannot set Complete=True and Failed=true conditions")
	}
	if complete && failing && c.turned(batchv1.JobComplete, batchv1.JobFailureTarget) {
		c.reject("cannot set Complete=True and FailureTarget=true conditions")
	}
	if failed && !failing && c.turned(batchv1.JobFailed) {
		c.reject("cannot set Failed=True condition without the FailureTarget=true condition")
	}
	if complete && !succeeds && c.turned(batchv1.JobComplete) {
		c.reject("cannot set Complete=True condition without the SuccessCriteriaMet=true condition")
	}
	if succeeds && failed {
		c.reject("cannot set SuccessCriteriaMet=True and Failed=true conditions")
	}
	if succeeds && failing {
		c.reject("cannot set SuccessCriteriaMet=True and FailureTarget=true conditions")
	}
	if c.is.Spec.SuccessPolicy != nil && !succeeds && complete {
		c.reject("cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True")
	}
	for _, kind := range []batchv1.JobConditionType{batchv1.JobFailed, batchv1.JobComplete, batchv1.JobFailureTarget} {
		if jobHas(c.was, kind) && !jobHas(c.is, kind) {
			c.reject("cannot disable the terminal " + string(kind) + "=True condition")
		}
	}
	wasMet := jobHas(c.was, batchv1.JobSuccessCriteriaMet)
	if wasMet && !succeeds {
		c.reject("cannot disable the SuccessCriteriaMet=True condition")
	}
	if jobHas(c.was, batchv1.JobComplete) && !wasMet && succeeds {
		c.reject("cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions")
	}
}

func (c *jobChange) times() {
	path, is, was := field.NewPath("status"), &c.is.Status, &c.was.Status
	start, end := path.Child("startTime"), path.Child("completionTime")
	started, ended := !is.StartTime.Equal(was.StartTime), !is.CompletionTime.Equal(was.CompletionTime)
	complete := jobHas(c.is, batchv1.JobComplete)
	if c.turned(batchv1.JobComplete) || ended {
		if is.CompletionTime != nil && !complete {
			c.add(field.Invalid(end, is.CompletionTime,
				"cannot set completionTime when there is no Complete=True condition"))
		}
		if is.CompletionTime == nil && complete {
			c.add(field.Required(end, "completionTime is required for Complete jobs"))
		}
	}
	if (started || ended) && is.StartTime != nil && is.CompletionTime != nil && is.CompletionTime.Before(is.StartTime) {
		c.add(field.Invalid(end, is.CompletionTime, "must be equal to or after `startTime`"))
	}
	if is.CompletionTime != nil && was.CompletionTime != nil && ended {
		c.add(field.Invalid(end, is.CompletionTime, "field is immutable"))
	}
	// A resumed job gets a new start time.
	if was.StartTime != nil && started && !ptr.Deref(c.is.Spec.Suspend, false) && !jobHas(c.was, batchv1.JobSuspended) {
		c.add(field.Invalid(start, orZeroTime(is.StartTime), "field is immutable for unsuspended job once set"))
	}
	if is.StartTime == nil && jobFinished(c.is) && (started || c.turned(batchv1.JobComplete, batchv1.JobFailed)) {
		c.add(field.Required(start, "startTime is required for finished job"))
	}
}

func orZeroTime(t *metav1.Time) any {
	if t == nil {
		return nil
	}
	return t
}

// finished requires a finished job to have no active pods and no pods that wait to be counted.
func (c *jobChange) finished() {
	if !jobFinished(c.is) {
		return
	}
	path, is, was := field.NewPath("status"), &c.is.Status, &c.was.Status
	now := jobFinished(c.is) != jobFinished(c.was)
	if is.Active > 0 && (now || is.Active != was.Active) {
		c.add(field.Invalid(path.Child("active"), is.Active, "active>0 is invalid for finished job"))
	}
	if ptr.Deref(is.Terminating, 0) > 0 && (now || !equality.Semantic.DeepEqual(is.Terminating, was.Terminating)) {
		c.add(field.Invalid(path.Child("terminating"), *is.Terminating, "terminating>0 is invalid for finished job"))
	}
	pods := is.UncountedTerminatedPods
	if pods != nil && len(pods.Failed)+len(pods.Succeeded) > 0 &&
		(now || !equality.Semantic.DeepEqual(pods, was.UncountedTerminatedPods)) {
		c.add(field.Invalid(path.Child("uncountedTerminatedPods"), pods, "must be empty for finished job"))
	}
}

func (c *jobChange) indexes() {
	path, is, was, spec := field.NewPath("status"), &c.is.Status, &c.was.Status, &c.is.Spec
	done, lost := is.CompletedIndexes != was.CompletedIndexes, !equality.Semantic.DeepEqual(is.FailedIndexes,
		was.FailedIndexes)
	var completed, failed indexList
	if spec.Completions != nil {
		var err error
		if completed, err = parseIndexes(is.CompletedIndexes, *spec.Completions); err != nil && done {
			c.add(field.Invalid(path.Child("completedIndexes"), is.CompletedIndexes, "error parsing completedIndexes: "+
				err.Error()))
		}
		if is.FailedIndexes != nil {
			if failed, err = parseIndexes(*is.FailedIndexes, *spec.Completions); err != nil && lost &&
				spec.BackoffLimitPerIndex != nil {
				c.add(field.Invalid(path.Child("failedIndexes"), *is.FailedIndexes, "error parsing failedIndexes: "+
					err.Error()))
			}
		}
	}
	if done && is.CompletedIndexes != "" && !isIndexed(c.is) {
		c.add(field.Invalid(path.Child("completedIndexes"), is.CompletedIndexes,
			"cannot set non-empty completedIndexes when non-indexed completion mode"))
	}
	if lost && is.FailedIndexes != nil && spec.BackoffLimitPerIndex == nil {
		c.add(field.Invalid(path.Child("failedIndexes"), *is.FailedIndexes,
			"cannot set non-null failedIndexes when backoffLimitPerIndex is null"))
	}
	if index, ok := completed.common(failed); ok && (done || lost) {
		c.add(field.Invalid(path.Child("failedIndexes"), *is.FailedIndexes,
			fmt.Sprintf("failedIndexes and completedIndexes overlap at index: %d", index)))
	}
}

// indexList is an ascending list of intervals of a job's indexes, both ends included: "1,3-5" is
// {1,1},{3,5}.
type indexList [][2]int

// parseIndexes parses a list of indexes that are less than completions. It stops at the first error.
func parseIndexes(text string, completions int32) (indexList, error) {
	if text == "" {
		return nil, nil
	}
	var list indexList
	last := -1
	for part := range strings.SplitSeq(text, ",") {
		first, end, err := parseInterval(part, int(completions))
		if err != nil {
			return nil, err
		}
		if len(list) > 0 && last >= first {
			return nil, fmt.Errorf("non-increasing order, previous: %d, current: %d", last, first)
		}
		list, last = append(list, [2]int{first, end}), end
	}
	return list, nil
}

func parseInterval(text string, completions int) (first, last int, err error) {
	limits := strings.Split(text, "-")
	if len(limits) > 2 {
		return 0, 0, fmt.Errorf("the fragment %q violates the requirement that an index interval can have at most "+
			"two parts separated by '-'", text)
	}
	var ends [2]int
	for i, limit := range limits {
		n, err := strconv.Atoi(limit)
		if err != nil {
			return 0, 0, fmt.Errorf("cannot convert string to integer for index: %q", limit)
		}
		if n >= completions {
			return 0, 0, fmt.Errorf("too large index: %q", limit)
		}
		ends[i] = n
	}
	if len(limits) == 1 {
		return ends[0], ends[0], nil
	}
	if ends[0] >= ends[1] {
		return 0, 0, fmt.Errorf("non-increasing order, previous: %d, current: %d", ends[0], ends[1])
	}
	return ends[0], ends[1], nil
}

// total returns the number of indexes in the list.
func (l indexList) total() int {
	n := 0
	for _, i := range l {
		n += i[1] - i[0] + 1
	}
	return n
}

// common returns the first index that is in both lists.
func (l indexList) common(other indexList) (int, bool) {
	for i, j := 0, 0; i < len(l) && j < len(other); {
		if from := max(l[i][0], other[j][0]); from <= min(l[i][1], other[j][1]) {
			return from, true
		}
		if l[i][1] < other[j][1] {
			i++
		} else {
			j++
		}
	}
	return 0, false
}
