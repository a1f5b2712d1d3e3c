package garbagecollector

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// drawing is the graph, or a part of it, as the debug endpoint serves it.
type drawing struct {
	Nodes []drawn `json:"nodes"`
	// Edges lead from a dependent to its owner.
	Edges []edge `json:"edges"`
}

type drawn struct {
	UID       types.UID `json:"uid"`
	Group     string    `json:"group"`
	Version   string    `json:"version"`
	Kind      string    `json:"kind"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	// Missing is true if the object is known only because others name it as their owner.
	Missing bool `json:"missing"`
	// BeingDeleted reports a deletionTimestamp, DeletingDependents a deletion in the foreground.
	BeingDeleted       bool `json:"beingDeleted"`
	DeletingDependents bool `json:"deletingDependents"`
}

type edge struct {
	Dependent types.UID `json:"dependent"`
	Owner     types.UID `json:"owner"`
}

// draw returns all objects that own or are owned. With uids it returns these objects, everything that they
// depend on, and everything that depends on them.
func (g *graph) draw(uids ...types.UID) drawing {
	g.mu.RLock()
	defer g.mu.RUnlock()
	shown := map[types.UID]bool{}
	if len(uids) == 0 {
		for uid, n := range g.nodes {
			if len(n.owners) > 0 {
				shown[uid] = true
			}
		}
		for owner := range g.named {
			shown[owner] = true
		}
	}
	for _, uid := range uids {
		g.spread(uid, shown, func(uid types.UID) (next []types.UID) {
			if n := g.nodes[uid]; n != nil {
				for _, ref := range n.owners {
					next = append(next, ref.UID)
				}
			}
			return next
		})
		dependents := map[types.UID]bool{}
		g.spread(uid, dependents, func(uid types.UID) (next []types.UID) {
			for d := range g.named[uid] {
				next = append(next, d)
			}
			return next
		})
		for d := range dependents {
			shown[d] = true
		}
	}
	return g.drawn(shown)
}

// spread adds uid, and everything reachable from it by next, to found. It skips a uid that is neither in the
// graph nor named as an owner.
func (g *graph) spread(uid types.UID, found map[types.UID]bool, next func(types.UID) []types.UID) {
	if found[uid] || g.nodes[uid] == nil && len(g.named[uid]) == 0 {
		return
	}
	found[uid] = true
	for _, n := range next(uid) {
		g.spread(n, found, next)
	}
}

func (g *graph) drawn(shown map[types.UID]bool) drawing {
	d := drawing{Nodes: []drawn{}, Edges: []edge{}}
	for uid := range shown {
		n := g.nodes[uid]
		if n == nil {
			d.Nodes = append(d.Nodes, g.missing(uid))
			continue
		}
		d.Nodes = append(d.Nodes, drawn{
			UID: uid, Group: n.gvk.Group, Version: n.gvk.Version, Kind: n.gvk.Kind, Namespace: n.namespace,
			Name:         n.name,
			BeingDeleted: n.deleting, DeletingDependents: n.deleting && n.foreground(),
		})
		for _, ref := range n.owners {
			if shown[ref.UID] {
				d.Edges = append(d.Edges, edge{uid, ref.UID})
			}
		}
	}
	slices.SortFunc(d.Nodes, func(a, b drawn) int { return strings.Compare(string(a.UID), string(b.UID)) })
	slices.SortFunc(d.Edges, func(a, b edge) int {
		return strings.Compare(string(a.Dependent)+"/"+string(a.Owner), string(b.Dependent)+"/"+string(b.Owner))
	})
	return d
}

// missing describes an owner that only references name, as far as the first reference knows it.
func (g *graph) missing(uid types.UID) drawn {
	out := drawn{UID: uid, Missing: true}
	for d := range g.named[uid] {
		if dependent := g.nodes[d]; dependent != nil {
			ref := dependent.reference(uid)
			out.Kind, out.Name, out.Namespace = ref.Kind, ref.Name, dependent.namespace
			out.Group, out.Version = "", ref.APIVersion
			if group, version, ok := strings.Cut(ref.APIVersion, "/"); ok {
				out.Group, out.Version = group, version
			}
			break
		}
	}
	return out
}

// ServeHTTP serves /graph in DOT, the language of Graphviz, or with ?format=json in JSON. With ?uid=, which may
// be repeated, it serves only objects connected with these.
func (g *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/graph" {
		http.NotFound(w, r)
		return
	}
	var uids []types.UID
	for _, uid := range r.URL.Query()["uid"] {
		uids = append(uids, types.UID(uid))
	}
	d := g.graph.draw(uids...)
	switch format := r.URL.Query().Get("format"); format {
	case "json":
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(d) // the reader may be gone
	case "", "dot":
		w.Header().Set("Content-Type", "text/vnd.graphviz")
		d.dot(w)
	default:
		http.Error(w, fmt.Sprintf("format: %q is not one of: dot, json", format), http.StatusBadRequest)
	}
}

// dot writes the drawing in the format of Kubernetes' garbage collector.
func (d *drawing) dot(w io.Writer) {
	number := make(map[types.UID]int, len(d.Nodes))
	fmt.Fprint(w, "strict digraph full {\n  // Node definitions.\n")
	for i, n := range d.Nodes {
		number[n.UID] = i
		label := fmt.Sprintf("uid=%s\nnamespace=%s\n%s\n", n.UID, n.Namespace, kindAndName(n))
		fmt.Fprintf(w, "  %d [\n    label=%s\n", i, strconv.Quote(label))
		for _, a := range [][2]string{
			{"group", n.Group}, {"version", n.Version}, {"kind", n.Kind}, {"namespace", n.Namespace}, {"name", n.Name},
			{"uid", string(n.UID)},
			{"missing", strconv.FormatBool(n.Missing)}, {"beingDeleted", strconv.FormatBool(n.BeingDeleted)},
			{"deletingDependents", strconv.FormatBool(n.DeletingDependents)},
			{"virtual", strconv.FormatBool(n.Missing)},
		} {
			fmt.Fprintf(w, "    %s=%s\n", a[0], strconv.Quote(a[1]))
		}
		fmt.Fprint(w, "  ];\n")
	}
	fmt.Fprint(w, "\n  // Edge definitions.\n")
	for _, e := range d.Edges {
		fmt.Fprintf(w, "  %d -> %d;\n", number[e.Dependent], number[e.Owner])
	}
	fmt.Fprint(w, "}\n")
}

func kindAndName(n drawn) string {
	kind := n.Kind + "." + n.Version
	if n.Group != "" {
		kind += "." + n.Group
	}
	return kind + "/" + n.Name
}
