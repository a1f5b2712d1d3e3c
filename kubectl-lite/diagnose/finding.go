package diagnose

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Rank orders findings, the likeliest cause first: a pod that was never created explains why it does not run, a
// pod that no node takes explains why its image was not pulled, and so on.
type Rank int

const (
	RankRefused Rank = iota
	RankMissing
	RankUnschedulable
	RankNode
	RankImage
	RankCrash
	RankProbe
	RankRestart
	RankStuck
	RankPending
	RankDeleting
	RankWarning
	// RankSummary is a condition of an owner, which only sums up what its pods report.
	RankSummary
)

// String is the rank's name for programs.
func (r Rank) String() string {
	return [...]string{
		RankRefused: "refused", RankMissing: "missing", RankUnschedulable: "unschedulable", RankNode: "node",
		RankImage: "image", RankCrash: "crash", RankProbe: "probe", RankRestart: "restart", RankStuck: "stuck",
		RankPending: "pending", RankDeleting: "deleting", RankWarning: "warning", RankSummary: "summary",
	}[r]
}

// Finding is one thing that is wrong. Its texts may hold text of the server's as it is.
type Finding struct {
	Rank    Rank
	Subject string // the object, as Kind/name
	Text    string // what is wrong with it: "is on Node/a, which does not exist"
	// Container is the one that crashed, where the subject is a pod.
	Container string
	Namespace string // of the subject, where the findings are from several
	Others    int    // how many more objects the same is true of
}

// NotReady is the finding about an object that is not ready and has no fault.
func NotReady(obj *unstructured.Unstructured) Finding {
	ready, _ := Readiness(obj)
	return Finding{Rank: RankSummary, Subject: obj.GetKind() + "/" + obj.GetName(),
		Text: fmt.Sprintf("is not ready (%s); it may still be on its way", ready)}
}

// Merge orders findings by rank and folds those that are the same for many objects.
func Merge(all []Finding) []Finding {
	slices.SortStableFunc(all, func(a, b Finding) int { return cmp.Compare(a.Rank, b.Rank) })
	type same struct {
		rank            Rank
		namespace, text string
	}
	var merged []Finding
	first := map[same]int{}
	for _, f := range all {
		key := same{f.Rank, f.Namespace, f.Text}
		at, known := first[key]
		switch {
		case !known:
			first[key] = len(merged)
			merged = append(merged, f)
		case merged[at].Subject != f.Subject:
			merged[at].Others++
		}
	}
	return merged
}
