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

// intervals is a set of indexes, as sorted ranges that neither overlap nor touch. The status has the same form
// ("1,3-5,7"), which stays short for Jobs of 100,000 indexes.
type intervals []interval

type interval struct{ first, last int }

// parseIntervals reads the form of the status. Another client may have written it, in any order and with
// overlaps. Indexes at or beyond limit are dropped: the Job's completions may have been reduced.
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

// with returns the union of the set and more indexes.
func (s intervals) with(indexes ...int) intervals {
	all := slices.Clone(s)
	for _, i := range indexes {
		all = append(all, interval{i, i})
	}
	return joined(all)
}

// joined returns the set of indexes in the ranges, which may be in any order and overlap.
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

// absent yields the indexes below limit that are not in the set, in ascending order. It takes time by the
// number of ranges, not by limit.
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
	next, found := slices.BinarySearchFunc(s, i, func(r interval, i int) int { return r.first - i })
	return found || next > 0 && i <= s[next-1].last
}

// common returns the number of indexes in both sets.
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

// indexOf returns a pod's completion index, or noIndex if it has no valid one.
func indexOf(pod *corev1.Pod) int {
	i, err := strconv.Atoi(pod.Annotations[batchv1.JobCompletionIndexAnnotation])
	if err != nil || i < 0 {
		return noIndex
	}
	return i
}

func (s *sync) completions() int {
	if s.job.Spec.Completions == nil {
		return 0
	}
	return int(*s.job.Spec.Completions)
}

// countIndexes finds the indexes that have succeeded and the indexes that have failed for good. An index counts
// as succeeded once, however many of its pods succeeded.
func (s *sync) countIndexes() {
	n := s.completions()
	s.done = parseIntervals(s.job.Status.CompletedIndexes, n)
	if s.job.Status.FailedIndexes != nil {
		s.lost = parseIntervals(*s.job.Status.FailedIndexes, n)
	}
	s.latest = map[int]*corev1.Pod{}
	var done, lost []int
	for _, pod := range s.pods {
		i := indexOf(pod)
		if i == noIndex || i >= n || !tracked(pod) {
			continue
		}
		switch {
		case pod.Status.Phase == corev1.PodSucceeded:
			done = append(done, i)
		case s.isFailed(pod):
			if p := s.latest[i]; p == nil || failuresOf(pod) >= failuresOf(p) {
				s.latest[i] = pod
			}
		}
	}
	s.done = s.done.with(done...)
	s.succeeded = int32(s.done.total())
	if s.job.Spec.BackoffLimitPerIndex == nil {
		return
	}
	for i, pod := range s.latest {
		if !s.done.has(i) && s.indexIsLost(pod) {
			lost = append(lost, i)
		}
	}
	s.lost = s.lost.with(lost...)
}

// indexIsLost reports whether the index fails with this failed pod: by the pod failure policy, or because
// backoffLimitPerIndex allows no further pod.
func (s *sync) indexIsLost(pod *corev1.Pod) bool {
	switch action, _ := s.policyFor(pod); action {
	case batchv1.PodFailurePolicyActionFailIndex:
		return true
	case batchv1.PodFailurePolicyActionIgnore:
		return false
	}
	return failuresOf(pod) >= int(*s.job.Spec.BackoffLimitPerIndex)
}

// failuresOf returns how many pods of the index failed, and counted as failures, before this one.
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

// awaited reports whether a failed pod's finalizer must stay for now, because the pod's replacement, which does
// not exist yet, takes the index's failure counts from it.
func (s *sync) awaited(pod *corev1.Pod) bool {
	if s.job.Spec.BackoffLimitPerIndex == nil || s.job.DeletionTimestamp != nil || s.verdict != nil {
		return false
	}
	i := indexOf(pod)
	if s.latest[i] != pod || s.done.has(i) || s.lost.has(i) {
		return false
	}
	return !slices.ContainsFunc(s.pods, func(p *corev1.Pod) bool {
		return indexOf(p) == i && p != pod && failuresOf(p)+ignoredFailuresOf(p) > failuresOf(pod)+
			ignoredFailuresOf(pod)
	})
}
