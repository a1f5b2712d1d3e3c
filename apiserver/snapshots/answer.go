package snapshots

import (
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Path is the path of all snapshots. Each is below it by its name, and its actions are below that.
const Path = "/debug/snapshots"

// Answer returns the answer to an authorized request at or below Path.
func (k *Keeper) Answer(r *http.Request) (any, error) {
	name, action, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, Path), "/"), "/")
	switch r.Method + " " + action {
	case "GET ":
		infos, err := k.List()
		return map[string]any{"snapshots": infos}, err
	case "PUT ":
		return k.Save(r.Context(), name)
	case "DELETE ":
		return k.Delete(name)
	case "POST load":
		return k.Load(r.Context(), name)
	case "POST reset":
		return k.Reset(r.Context(), name)
	}
	return nil, apierrors.NewMethodNotSupported(schema.GroupResource{Resource: r.URL.Path}, strings.ToLower(r.Method))
}
