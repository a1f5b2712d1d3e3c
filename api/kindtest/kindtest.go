// Package kindtest tests the validation of kinds: each case is a change of a valid object, with the expected errors.
package kindtest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/builtin"
)

// Of returns the registration of a kind, by its name, or by "group/version kind" if several groups or versions have
// it.
func Of(t testing.TB, kind string) *api.Resource {
	t.Helper()
	for _, r := range builtin.Kinds() {
		if r.Kind == kind || r.GroupVersion().String()+" "+r.Kind == kind {
			return r
		}
	}
	t.Fatalf("no kind %s", kind)
	return nil
}

// Decode decodes YAML strictly into an object of the stored version, and sets its defaults.
func Decode(t testing.TB, r *api.Resource, text string) api.Object {
	t.Helper()
	obj := r.New()
	require.NoError(t, yaml.UnmarshalStrict([]byte(text), obj), text)
	if r.Conversion != nil {
		var err error
		obj, err = r.Conversion.ConvertFrom(obj)
		require.NoError(t, err)
	}
	ApplyDefaults(r, obj)
	return obj
}

// validate returns the errors of a new object.
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

func Refusals(errs field.ErrorList) []string {
	list := make([]string, len(errs))
	for i, e := range errs {
		list[i] = strings.TrimPrefix(string(e.Type), "FieldValue") + " " + e.Field
	}
	return list
}

// Case is a change of a valid object and the errors that it must cause.
type Case = struct {
	Name string
	// Replace has pairs of texts: the first of each pair is replaced by the second.
	Replace []string
	// Want has the "Reason path" of every error, in any order.
	Want []string
}

// Create checks that the valid object is accepted, and that each change causes exactly the expected errors.
func Create(t *testing.T, kind, sound string, cases []Case) {
	t.Helper()
	r := Of(t, kind)
	require.Empty(t, validate(r, Decode(t, r, sound)), "the sound %s is refused", kind)
	for _, c := range cases {
		t.Run(kind+"/"+c.Name, func(t *testing.T) {
			t.Parallel()
			got := Refusals(validate(r, Decode(t, r, Changed(t, sound, c.Replace))))
			require.ElementsMatch(t, c.Want, got)
		})
	}
}

// Update does the same for updates of the valid object. If a case expects no error, the update must be accepted.
func Update(t *testing.T, kind, sound string, cases []Case) {
	t.Helper()
	r := Of(t, kind)
	for _, c := range cases {
		t.Run(kind+"/update/"+c.Name, func(t *testing.T) {
			t.Parallel()
			old, obj := Decode(t, r, sound), Decode(t, r, Changed(t, sound, c.Replace))
			if r.PrepareUpdate != nil {
				r.PrepareUpdate(obj, old)
			}
			require.ElementsMatch(t, c.Want, Refusals(r.ValidateUpdate(obj, old)))
		})
	}
}

func Changed(t *testing.T, text string, replace []string) string {
	t.Helper()
	for i := 0; i < len(replace); i += 2 {
		require.Contains(t, text, replace[i], "the sound object has no such text")
		text = strings.Replace(text, replace[i], replace[i+1], 1)
	}
	return text
}

func ApplyDefaults(r *api.Resource, obj api.Object) {
	if r := r.Stored(); r.Default != nil {
		r.Default(obj)
	}
}
