package conversion_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/apiserver"
)

// Objects written in random versions by random verbs match a model in every version.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	c := serve(t, apiserver.Options{})
	ctx := t.Context()
	random := rand.New(rand.NewPCG(1, 2))
	model := map[string]object{} // by name, with the spec in v1
	random1 := func() object {
		spec := object{"host": fmt.Sprint("h", random.IntN(5)), "port": int64(random.IntN(5))}
		if random.IntN(2) == 0 {
			spec["tags"] = []any{fmt.Sprint(random.IntN(3))}
		}
		return spec
	}
	for write := range 200 {
		name, spec := fmt.Sprint("e", random.IntN(8)), random1()
		version := "v1"
		sent := endpoint(version, name, spec)
		if random.IntN(2) == 0 {
			version = "v2"
			sent.Object = convert(sent.Object, "example.com/v2")
		}
		objects := c.in(endpoints(version))
		var err error
		switch is := model[name]; {
		case is == nil:
			_, err = objects.Create(ctx, sent, metav1.CreateOptions{})
		case random.IntN(5) == 0:
			err = objects.Delete(ctx, name, metav1.DeleteOptions{})
			spec = nil
		case random.IntN(3) == 0:
			_, err = objects.Apply(ctx, name, sent, metav1.ApplyOptions{FieldManager: "m", Force: true})
			if is["tags"] != nil && spec["tags"] == nil { // from another manager or an earlier apply
				spec["tags"] = c.get(v1, name)["spec"].(object)["tags"]
			}
			if spec["tags"] == nil {
				delete(spec, "tags")
			}
		default:
			sent.SetResourceVersion(c.get(endpoints(version), name)["metadata"].(object)["resourceVersion"].(string))
			_, err = objects.Update(ctx, sent, metav1.UpdateOptions{})
		}
		require.NoError(t, err, "write %d", write)
		if model[name] = spec; spec == nil {
			delete(model, name)
			continue
		}
		require.Equal(t, spec, c.get(v1, name)["spec"], "write %d", write)
		require.Equal(t, convert(endpoint("v1", name, spec).Object, "example.com/v2")["spec"], c.get(v2, name)["spec"],
			"write %d", write)
	}
	for _, version := range []string{"v1", "v2"} {
		list, err := c.in(endpoints(version)).List(ctx, metav1.ListOptions{})
		require.NoError(t, err)
		require.Len(t, list.Items, len(model))
		for _, o := range list.Items {
			want := convert(endpoint("v1", o.GetName(), model[o.GetName()]).Object, "example.com/"+version)
			require.Equal(t, want["spec"], o.Object["spec"])
		}
	}
}
