package history

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest/fakeenv"
)

var kind = appsv1.SchemeGroupVersion.WithKind("StatefulSet")

// revisions is the history of one owner. The test fills its cache.
type revisions struct {
	*fakeenv.Env
	*History
	set *appsv1.StatefulSet
	o   *Owner
}

func newRevisions(t *testing.T) *revisions {
	e := fakeenv.New(t)
	n := 0
	e.Fake.PrependReactor("create", "controllerrevisions", func(a clienttesting.Action) (bool, runtime.Object, error) {
		n++ // client-go's fake clientset sets no uids
		a.(clienttesting.CreateAction).GetObject().(*appsv1.ControllerRevision).UID = types.UID(fmt.Sprint("made-", n))
		return false, nil, nil
	})
	h, err := New(e.Client, e.Informers, &controller.VersionExpectations{})
	require.NoError(t, err)
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db", UID: "db-1"}}
	return &revisions{Env: e, History: h, set: set, o: &Owner{Object: set, Kind: kind,
		Selector: labels.SelectorFromSet(labels.Set{"app": "db"}), Template: template("one"), Collisions: new(int32),
		HashLabel: "hash", Live: func(context.Context) (metav1.Object, error) { return set, nil }}}
}

func template(image string) *corev1.PodTemplateSpec {
	return &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "db"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: image}}}}
}

// sync sets the owner's template, calls Sync, and copies the stored revisions to the cache.
func (r *revisions) sync(image string) (update *appsv1.ControllerRevision, all []*appsv1.ControllerRevision) {
	r.Helper()
	r.o.Template = template(image)
	update, all, err := r.Sync(r.Context(), r.o)
	require.NoError(r, err)
	list, err := r.Client().AppsV1().ControllerRevisions("default").List(r.Context(), metav1.ListOptions{})
	require.NoError(r, err)
	for i := range list.Items {
		require.NoError(r, r.informer.GetIndexer().Add(&list.Items[i]))
	}
	return update, all
}

func (r *revisions) images(all []*appsv1.ControllerRevision) (images []string) {
	for _, revision := range all {
		template, err := Template(revision)
		require.NoError(r, err)
		images = append(images, template.Spec.Containers[0].Image)
	}
	return images
}

func TestSync_NumbersEachTemplateOnce(t *testing.T) {
	t.Parallel()
	r := newRevisions(t)
	one, all := r.sync("one")
	require.EqualValues(t, 1, one.Revision)
	require.Equal(t, []string{"one"}, r.images(all))
	require.True(t, metav1.IsControlledBy(one, r.set))
	two, all := r.sync("two")
	require.EqualValues(t, 2, two.Revision)
	require.Equal(t, []string{"one", "two"}, r.images(all))
	again, _ := r.sync("two")
	require.Equal(t, two.Name, again.Name)
	require.Empty(t, r.Env.Writes("update", "controllerrevisions"))

	back, all := r.sync("one")
	require.Equal(t, one.Name, back.Name, "rolling back uses the revision there is")
	require.EqualValues(t, 3, back.Revision)
	require.Equal(t, []string{"two", "one"}, r.images(all))
	require.Len(t, r.Env.Writes("create", "controllerrevisions"), 2)
}

// TestSync_FindsItsOwnRevisionMissingInTheCache creates no second revision because of a stale cache.
func TestSync_FindsItsOwnRevisionMissingInTheCache(t *testing.T) {
	t.Parallel()
	r := newRevisions(t)
	first, _, err := r.Sync(t.Context(), r.o)
	require.NoError(t, err)
	second, all, err := r.Sync(t.Context(), r.o)
	require.NoError(t, err)
	require.Equal(t, first.Name, second.Name)
	require.Len(t, all, 1)
	require.Zero(t, *r.o.Collisions)
}

func TestSync_AvoidsTheNameOfAnothersRevision(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*appsv1.ControllerRevision){
		"of another template": func(c *appsv1.ControllerRevision) { c.Data.Raw = snapshot(template("other")) },
		"of an earlier owner": func(c *appsv1.ControllerRevision) { c.OwnerReferences[0].UID = "db-0" },
	} {
		r := newRevisions(t)
		taken := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: "default", UID: "taken",
			Name:            "db-" + controller.TemplateHash(snapshot(r.o.Template), nil),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(r.set, kind)}},
			Data: runtime.RawExtension{Raw: snapshot(r.o.Template)}}
		change(taken)
		require.NoError(t, r.Fake.Tracker().Add(taken))
		made, _, err := r.Sync(t.Context(), r.o)
		require.NoError(t, err)
		require.NotEqual(t, taken.Name, made.Name, name)
		require.EqualValues(t, 1, *r.o.Collisions, name)
	}
}

func TestTruncate_DeletesTheOldestUnusedByUID(t *testing.T) {
	t.Parallel()
	r := newRevisions(t)
	var all []*appsv1.ControllerRevision
	for _, image := range []string{"one", "two", "three", "four"} {
		_, all = r.sync(image)
	}
	require.NoError(t, r.Truncate(t.Context(), all, map[string]bool{all[0].Name: true, all[3].Name: true}, 1))
	deletes := r.Env.Writes("delete", "controllerrevisions")
	require.Len(t, deletes, 1)
	require.Equal(t, all[1].Name, deletes[0].(clienttesting.DeleteAction).GetName())
	require.Equal(t, all[1].UID, *deletes[0].(clienttesting.DeleteActionImpl).DeleteOptions.Preconditions.UID)
}

func TestSame_IgnoresTheOrderOfFields(t *testing.T) {
	t.Parallel()
	require.True(t, same([]byte(`{"a":1,"b":[2]}`), []byte(`{"b": [2], "a": 1}`)))
	require.False(t, same([]byte(`{"a":1}`), []byte(`{"a":2}`)))
	require.False(t, same([]byte(`{"a":1}`), []byte(`{`)))
}
