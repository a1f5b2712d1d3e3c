package admission

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func TestOwnerReferences_RequireTheRightsToTheirEffects(t *testing.T) {
	t.Parallel()
	free := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: "1"}
	holds, earlier, malformed, unserved := free, free, free, free
	holds.BlockOwnerDeletion, earlier.BlockOwnerDeletion = ptr.To(true), ptr.To(true)
	earlier.UID = "0"
	malformed.APIVersion, malformed.BlockOwnerDeletion = "a/b/c", ptr.To(true)
	unserved.Kind, unserved.BlockOwnerDeletion = "Nothing", ptr.To(true)
	with := func(refs ...metav1.OwnerReference) *corev1.ConfigMap {
		return made(&corev1.ConfigMap{ObjectMeta: meta("c")},
			func(c *corev1.ConfigMap) { c.OwnerReferences = refs })
	}
	const (
		noDelete   = "cannot set an ownerRef on a resource you can't delete: no right"
		noFinalize = "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on"
		mayDelete  = "delete configmaps default/c"
		mayBlock   = "update configmaps/finalizers default/owner"
	)
	decides := func(rights []string, decisions []decision) {
		t.Helper()
		newWorld().may(rights...).decides(t, "OwnerReferencesPermissionEnforcement", "", decisions)
	}
	decides(nil, []decision{
		{name: "no owner", write: creates(with())},
		{name: "the owner that it has", write: updates(with(holds), with(holds))},
		{name: "a first owner without the right to delete", write: creates(with(free)), words: noDelete},
		{name: "another owner without the right to delete", write: updates(with(earlier), with(free)),
			words: noDelete},
		{name: "no owner any more without the right to delete", write: updates(with(), with(free)),
			words: noDelete},
		{name: "a change of an owner without the right to delete", write: updates(with(holds), with(free)),
			words: noDelete},
	})
	decides([]string{mayBlock}, []decision{
		{name: "the right to block alone", write: creates(with(holds)), words: noDelete},
	})
	decides([]string{mayDelete}, []decision{
		{name: "a first owner", write: creates(with(free))},
		{name: "no owner any more", write: updates(with(), with(holds))},
		{name: "an owner that is not blocked any more", write: updates(with(free), with(holds))},
		{name: "another owner beside a blocked one", write: updates(with(holds, free), with(holds))},
		{name: "a blocked first owner", write: creates(with(holds)), words: noFinalize},
		{name: "an owner that is blocked now", write: updates(with(holds), with(free)), words: noFinalize},
		{name: "another blocked owner of the name", write: updates(with(holds), with(earlier)),
			words: noFinalize},
		{name: "a second owner that is blocked", write: updates(with(free, holds), with(free)),
			words: noFinalize},
	})
	decides([]string{mayDelete, mayBlock}, []decision{
		{name: "a blocked first owner with the right", write: creates(with(holds))},
		{name: "an owner that is blocked now with the right", write: updates(with(holds), with(free))},
		{name: "a malformed API version", write: creates(with(malformed)),
			words: `API version "a/b/c" is malformed`},
		{name: "a kind that is not served", write: creates(with(unserved)),
			words: "cannot find RESTMapping for APIVersion v1 Kind Nothing"},
	})
}
