package job

import (
	"cmp"
	"iter"
	"slices"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// intervals is a set of indexes, kept as sorted, disjoint, not adjacent ranges: the form in which
// the status has it ("1,3-5,7"), which stays short for Jobs of 100,000.
type intervals []interval

type interval struct{ first, last int }

// parseIntervals reads the form of the status, whoever wrote it: in any order, and overlapping. What lies at or
// beyond limit is dropped: the Job may have been made smaller.
func parseIntervals(text string, limit int) intervals {
	var s intervals
	for part := range strings.SplitSeq(text, ",") {
		a, b, isRange := strings.Cut(part, "-")
		first, err := strconv.Atoi(a)
		if err != nil {
			continue
		}
		last := first
		if isRange {
			if last, err = strconv.Atoi(b); err != nil {
				continue
			}
		}
		if last = min(last, limit-1); first <= last {
			s = append(s, interval{first, last})
		}
	}
	return joined(s)
}

func (s intervals) String() string {
	var b strings.Builder
	for i, r := range s {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(r.first))
		if r.last > r.first {
			sep := byte('-')
			if r.last == r.first+1 {
				sep = ','
			}
			b.WriteByte(sep)
			b.WriteString(strconv.Itoa(r.last))
		}
	}
	return b.String()
}

// with returns the set with more indexes in it.
func (s intervals) with(indexes ...int) intervals {
	all := slices.Clone(s)
	for _, i := range indexes {
		all = append(all, interval{i, i})
	}
	return joined(all)
}

// joined makes a set of ranges in any order.
func joined(all []interval) intervals {
	slices.SortFunc(all, func(a, b interval) int { return cmp.Compare(a.first, b.first) })
	var set intervals
	for _, r := range all {
		if n := len(set); n > 0 && r.first <= set[n-1].last+1 {
			set[n-1].last = max(set[n-1].last, r.last)
			continue
		}
		set = append(set, r)
	}
	return set
}

// absent yields the indexes below limit that are not in the set, in their order.
func (s intervals) absent(limit int) iter.Seq[int] {
	return func(yield func(int) bool) {
		i := 0
		for _, r := range append(s[:len(s):len(s)], interval{limit, limit}) {
			for ; i < r.first; i++ {
				if !yield(i) {
					return
				}
			}
			i = r.last + 1
		}
	}
}

func (s intervals) total() int {
	n := 0
	for _, r := range s {
		n += r.last - r.first + 1
	}
	return n
}

func (s intervals) has(i int) bool {
	at, found := slices.BinarySearchFunc(s, i, func(r interval, i int) int { return r.first - i })
	return found || at > 0 && i <= s[at-1].last
}

// common is how many indexes both sets have.
func (s intervals) common(o intervals) int {
	n := 0
	for i, j := 0, 0; i < len(s) && j < len(o); {
		n += max(0, min(s[i].last, o[j].last)-max(s[i].first, o[j].first)+1)
		if s[i].last < o[j].last {
			i++
		} else {
			j++
		}
	}
	return n
}

const noIndex = -1

// indexOf is a pod's completion index, or noIndex where it has none that counts.
func indexOf(pod *corev1.Pod) int {
	i, err := strconv.Atoi(pod.Annotations[batchv1.JobCompletionIndexAnnotation])
	if err != nil || i < 0 {
		return noIndex
	}
	return i
}

func (l *look) completions() int {
	if l.job.Spec.Completions == nil {
		return 0
	}
	return int(*l.job.Spec.Completions)
}

// countIndexes finds the indexes that have succeeded and those that have failed for good. An
// index counts as succeeded once, however many pods have done its work.
func (l *look) countIndexes() {
	n := l.completions()
	l.done = parseIntervals(l.job.Status.CompletedIndexes, n)
	if l.job.Status.FailedIndexes != nil {
		l.lost = parseIntervals(*l.job.Status.FailedIndexes, n)
	}
	l.latest = map[int]*corev1.Pod{}
	var done, lost []int
	for _, pod := range l.pods {
		i := indexOf(pod)
		if i == noIndex || i >= n || !tracked(pod) {
			continue
		}
		switch {
		case pod.Status.Phase == corev1.PodSucceeded:
			done = append(done, i)
		case l.isFailed(pod):
			if p := l.latest[i]; p == nil || failuresOf(pod) >= failuresOf(p) {
				l.latest[i] = pod
			}
		}
	}
	l.done = l.done.with(done...)
	l.succeeded = int32(l.done.total())
	if l.job.Spec.BackoffLimitPerIndex == nil {
		return
	}
	for i, pod := range l.latest {
		if !l.done.has(i) && l.indexIsLost(pod) {
			lost = append(lost, i)
		}
	}
	l.lost = l.lost.with(lost...)
}

// indexIsLost says whether the pod was the last that its index had a right to.
func (l *look) indexIsLost(pod *corev1.Pod) bool {
	switch action, _ := l.policyFor(pod); action {
	case batchv1.PodFailurePolicyActionFailIndex:
		return true
	case batchv1.PodFailurePolicyActionIgnore:
		return false
	}
	return failuresOf(pod) >= int(*l.job.Spec.BackoffLimitPerIndex)
}

// failuresOf is how many pods of the index failed, and counted, before this one.
func failuresOf(pod *corev1.Pod) int { return annotated(pod, batchv1.JobIndexFailureCountAnnotation) }

func ignoredFailuresOf(pod *corev1.Pod) int {
	return annotated(pod, batchv1.JobIndexIgnoredFailureCountAnnotation)
}

func annotated(pod *corev1.Pod, key string) int {
	n, err := strconv.Atoi(pod.Annotations[key])
	if err != nil {
		return 0
	}
	return n
}

// awaited says whether a failed pod's finalizer must stay: the pod that takes its place will
// be told, by it, how often the index has failed.
func (l *look) awaited(pod *corev1.Pod) bool {
	if l.job.Spec.BackoffLimitPerIndex == nil || l.job.DeletionTimestamp != nil || l.verdict != nil {
		return false
	}
	i := indexOf(pod)
	if l.latest[i] != pod || l.done.has(i) || l.lost.has(i) {
		return false
	}
	return !slices.ContainsFunc(l.pods, func(p *corev1.Pod) bool {
		return indexOf(p) == i && p != pod && failuresOf(p)+ignoredFailuresOf(p) > failuresOf(pod)+ignoredFailuresOf(pod)
	})
}
