package diagnose

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Rank orders findings, the likeliest cause first. An earlier step of a pod's life explains the later ones: a pod that
// could not be created does not run, a pod without a node does not pull its image, and so on.
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
	// RankSummary is a condition of an owner, which only summarizes the state of its pods.
	RankSummary
)

// String returns the rank's name for programs.
func (r Rank) String() string {
	return [...]string{
		RankRefused: "refused", RankMissing: "missing", RankUnschedulable: "unschedulable", RankNode: "node",
		RankImage: "image", RankCrash: "crash", RankProbe: "probe", RankRestart: "restart", RankStuck: "stuck",
		RankPending: "pending", RankDeleting: "deleting", RankWarning: "warning", RankSummary: "summary",
	}[r]
}

// Finding is one fault. Its texts may contain unfiltered text of the server.
type Finding struct {
	Rank    Rank
	Subject string // the object, as Kind/name
	Text    string // the fault, after the subject: "is on Node/a, which does not exist"
	// Container is the name of the container that crashed, if the subject is a pod.
	Container string
	Namespace string // of the subject, if the findings are from several namespaces
	Others    int    // the number of other objects with the same fault
}

// NotReady returns the finding about an object that is not ready and has no other finding.
func NotReady(obj *unstructured.Unstructured) Finding {
	ready, _ := Readiness(obj)
	return Finding{Rank: RankSummary, Subject: obj.GetKind() + "/" + obj.GetName(),
		Text: fmt.Sprintf("is not ready (%s); it may still be on its way", ready)}
}

// Merge orders findings by rank and combines equal findings about several objects.
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
		i, found := first[key]
		switch {
		case !found:
			first[key] = len(merged)
			merged = append(merged, f)
		case merged[i].Subject != f.Subject:
			merged[i].Others++
		}
	}
	return merged
}
