package fieldmanager

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// TestCustomOwnership_ForDefinitions plays with real definitions: all definitions below the folder
// $CUSTOM_DEFINITIONS. Other documents there are example objects, which some games start with.
func TestCustomOwnership_ForDefinitions(t *testing.T) {
	t.Parallel()
	folder := os.Getenv("CUSTOM_DEFINITIONS")
	if folder == "" {
		t.Skip("SKIPPED: CUSTOM_DEFINITIONS is missing, a folder of definitions to try; " +
			"TestCustomOwnership_IsTheLibrarys tries random ones, and make e2e those of known projects")
	}
	games, err := strconv.ParseUint(os.Getenv("CUSTOM_GAMES"), 10, 64)
	require.NoError(t, err)
	crds, examples := documentsIn(t, folder)
	var definitions, writes, applies, refused int
	for _, crd := range crds {
		for i := range crd.Spec.Versions {
			one := crd.DeepCopy() // a single version: kube-apiserver loses fields that other versions lack
			one.Spec.Versions = one.Spec.Versions[i : i+1]
			one.Spec.Versions[0].Served, one.Spec.Versions[0].Storage = true, true
			one.Status.AcceptedNames = one.Spec.Names
			contents := examples[crd.Spec.Group+"/"+crd.Spec.Versions[i].Name+" "+crd.Spec.Names.Kind]
			definitions++
			t.Run(fmt.Sprintf("%s %s", crd.Name, crd.Spec.Versions[i].Name), func(t *testing.T) {
				for seed := range games {
					r := newRandomKinds(seed)
					r.faulty = r.one(4)
					g := newGame(t, r, one)
					if n := uint64(len(contents)); n > 0 && seed%2 == 0 {
						g.example = contents[seed/2%n]
					}
					g.play(6)
					writes, applies, refused = writes+g.writes, applies+g.applies, refused+g.refused
				}
			})
		}
	}
	t.Logf("%d versions of definitions, examples of %d kinds: %d writes, %d of which the library does not track; "+
		"%d applies", definitions, len(examples), writes, refused, applies)
}

// documentsIn reads the definitions in a folder, and the other objects by version and kind.
func documentsIn(t *testing.T, folder string) (crds []*apiextensionsv1.CustomResourceDefinition,
	examples map[string][]map[string]any) {
	examples = map[string][]map[string]any{}
	require.NoError(t, filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".yaml") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for doc := range bytes.SplitSeq(text, []byte("\n---")) {
			var object map[string]any
			if yaml.Unmarshal(doc, &object) != nil || object["kind"] == nil {
				continue
			}
			if object["kind"] != "CustomResourceDefinition" {
				kind := fmt.Sprint(object["apiVersion"], " ", object["kind"])
				examples[kind] = append(examples[kind], object)
				continue
			}
			var crd apiextensionsv1.CustomResourceDefinition
			if err := yaml.Unmarshal(doc, &crd); err != nil {
				return err
			}
			crds = append(crds, &crd)
		}
		return nil
	}))
	return crds, examples
}
