package api_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/coxswain-dev/coxswain/api"
)

// kindOf finds a kind by its name, or by "group/version kind" if it is served in several.
func kindOf(t testing.TB, kind string) *api.Resource {
	t.Helper()
	for _, r := range api.Builtin() {
		if r.Kind == kind || r.GroupVersion().String()+" "+r.Kind == kind {
			return r
		}
	}
	t.Fatalf("no kind %s", kind)
	return nil
}

// decode reads YAML strictly into a kind's object, as it is stored, and fills its defaults.
func decode(t testing.TB, r *api.Resource, text string) api.Object {
	t.Helper()
	obj := r.New()
	require.NoError(t, yaml.UnmarshalStrict([]byte(text), obj), text)
	if r.View != nil {
		var err error
		obj, err = r.View.Read(obj)
		require.NoError(t, err)
	}
	applyDefaults(r, obj)
	return obj
}

// validate is what is said of a new object.
func validate(r *api.Resource, obj api.Object) field.ErrorList {
	var errs field.ErrorList
	if r.Validate != nil {
		errs = r.Validate(obj)
	}
	if r.ValidateCreate != nil {
		errs = append(errs, r.ValidateCreate(obj)...)
	}
	return errs
}

func refusals(errs field.ErrorList) []string {
	list := make([]string, len(errs))
	for i, e := range errs {
		list[i] = strings.TrimPrefix(string(e.Type), "FieldValue") + " " + e.Field
	}
	return list
}

// refused is a change to a sound object and what must be said of it.
type refused struct {
	name string
	// replace holds pairs of text: each first is replaced by its second.
	replace []string
	// want are "Reason path" of every refusal, in any order.
	want []string
}

// tryCreate holds validation to: the sound object passes, and each change is refused with
// exactly the paths and reasons given.
func tryCreate(t *testing.T, kind, sound string, cases []refused) {
	t.Helper()
	r := kindOf(t, kind)
	require.Empty(t, validate(r, decode(t, r, sound)), "the sound %s is refused", kind)
	for _, c := range cases {
		t.Run(kind+"/"+c.name, func(t *testing.T) {
			t.Parallel()
			got := refusals(validate(r, decode(t, r, changed(t, sound, c.replace))))
			require.ElementsMatch(t, c.want, got)
		})
	}
}

// tryUpdate does the same for updates of the sound object. No refusal wanted means allowed.
func tryUpdate(t *testing.T, kind, sound string, cases []refused) {
	t.Helper()
	r := kindOf(t, kind)
	for _, c := range cases {
		t.Run(kind+"/update/"+c.name, func(t *testing.T) {
			t.Parallel()
			old, obj := decode(t, r, sound), decode(t, r, changed(t, sound, c.replace))
			if r.PrepareUpdate != nil {
				r.PrepareUpdate(obj, old)
			}
			require.ElementsMatch(t, c.want, refusals(r.ValidateUpdate(obj, old)))
		})
	}
}

func changed(t *testing.T, text string, replace []string) string {
	t.Helper()
	for i := 0; i < len(replace); i += 2 {
		require.Contains(t, text, replace[i], "the sound object has no such text")
		text = strings.Replace(text, replace[i], replace[i+1], 1)
	}
	return text
}
