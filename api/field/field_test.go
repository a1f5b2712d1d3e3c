package field_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	plain "k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/coxswain-dev/coxswain/api/field"
)

func TestPath_RendersLikeApimachinery(t *testing.T) {
	t.Parallel()
	names := []string{"spec", "containers", "", "[0]", "a.b"}
	random := rand.New(rand.NewPCG(1, 2))
	name := func() string { return names[random.IntN(len(names))] }
	for range 1000 {
		root, second := name(), name()
		ours, theirs := field.NewPath(root), plain.NewPath(root)
		if random.IntN(2) == 0 {
			ours, theirs = field.NewPath(root, "status"), plain.NewPath(root, "status")
		}
		for range random.IntN(5) {
			switch n := random.IntN(12); random.IntN(4) {
			case 0:
				ours, theirs = ours.Child(second), theirs.Child(second)
			case 1:
				ours, theirs = ours.Child("a", "b", "c"), theirs.Child("a", "b", "c")
			case 2:
				ours, theirs = ours.Index(n), theirs.Index(n)
			case 3:
				ours, theirs = ours.Key(second), theirs.Key(second)
			}
		}
		require.Equal(t, theirs.String(), ours.String())
		require.Equal(t, theirs.Child("x").String(), field.In(theirs).Child("x").String())
	}
	var none *field.Path
	require.Equal(t, "<nil>", none.String())
	require.Equal(t, "spec", none.Child("spec").String())
}

func TestFew(t *testing.T) {
	t.Parallel()
	var errs field.ErrorList
	add := func(n, size int) {
		for range n {
			errs = append(errs, field.Invalid(field.NewPath("spec"), strings.Repeat("x", size), "it is long"))
		}
	}
	require.Empty(t, field.Few(errs))
	add(1, 2<<20)
	require.Len(t, field.Few(errs), 1, "there is always one")
	add(1, 10)
	require.Len(t, field.Few(errs), 1)
	errs = nil
	add(200, 100)
	require.Len(t, field.Few(errs), field.MaxErrors)
	errs = nil
	add(200, 100<<10)
	require.Len(t, field.Few(errs), 10)
}

// Not parallel: AllocsPerRun counts the allocations of the whole process.
func TestPath_DoesNotAllocate(t *testing.T) {
	names, found := []string{"web", "proxy"}, 0
	require.Zero(t, testing.AllocsPerRun(10, func() {
		path := field.NewPath("spec")
		for i := range names {
			found += len(notEmpty(names[i], path.Child("containers").Index(i).Child("name", "part")))
		}
	}))
	require.Zero(t, found)
}

func notEmpty(value string, path *field.Path) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return nil
}
