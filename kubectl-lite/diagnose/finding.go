package diagnose

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

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
	text := Rollout(obj)
	if text == "" {
		ready, _ := Readiness(obj)
		text = fmt.Sprintf("is not ready (%s)", ready)
	}
	return Finding{Rank: RankSummary, Subject: obj.GetKind() + "/" + obj.GetName(),
		Text: text + "; it may still be on its way"}
}

// Specific removes findings that another finding about the same object repeats with more detail: its text begins with
// theirs.
func Specific(all []Finding) []Finding {
	texts := map[[2]string][]string{}
	for _, f := range all {
		key := [2]string{f.Namespace, f.Subject}
		texts[key] = append(texts[key], f.Text)
	}
	return slices.DeleteFunc(all, func(f Finding) bool {
		return slices.ContainsFunc(texts[[2]string{f.Namespace, f.Subject}], func(text string) bool {
			return len(text) > len(f.Text) && strings.HasPrefix(text, f.Text)
		})
	})
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
