package admission

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/admission/calls"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
)

// world is a Cluster of a few objects and rights. It implements only the methods that single plugins need.
type world struct {
	Cluster
	objects []api.Object
	// rights are authorized requests, as "VERB RESOURCE[/SUBRESOURCE] [NAMESPACE/]NAME".
	rights []string
	// fresh are the objects in etcd; nil if memory is as new.
	fresh []api.Object
	err   error // the error of every read
	// tokenAudiences are Options.TokenAudiences.
	tokenAudiences []string
	made           []string
}

// newWorld returns a world with these objects and the namespaces default and closing, which is being deleted.
func newWorld(objects ...api.Object) *world {
	closing := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "closing"}}
	closing.Status.Phase = corev1.NamespaceTerminating
	return &world{objects: append([]api.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}},
		closing}, objects...)}
}

func (w *world) may(rights ...string) *world {
	w.rights = append(w.rights, rights...)
	return w
}

func (w *world) Get(_ context.Context, resource schema.GroupResource, namespace, name string) (api.Object, error) {
	if w.err != nil {
		return nil, w.err
	}
	for _, obj := range w.objects {
		if resourceOf(obj).GroupResource() == resource && obj.GetNamespace() == namespace && obj.GetName() == name {
			return obj, nil
		}
	}
	return nil, ErrNotFound
}

func (w *world) Await(ctx context.Context, resource schema.GroupResource, namespace, name string) (api.Object, error) {
	return w.Get(ctx, resource, namespace, name)
}

func (w *world) List(_ context.Context, resource schema.GroupResource, namespace string,
	fresh bool) ([]api.Object, error) {
	objects := w.objects
	if fresh && w.fresh != nil {
		objects = w.fresh
	}
	var found []api.Object
	for _, obj := range objects {
		if resourceOf(obj).GroupResource() == resource && (namespace == "" || obj.GetNamespace() == namespace) {
			found = append(found, obj)
		}
	}
	return found, w.err
}

func (w *world) Mentioning(ctx context.Context, resource schema.GroupResource, text string) ([]api.Object, error) {
	all, err := w.List(ctx, resource, "", false)
	return slices.DeleteFunc(all, func(obj api.Object) bool {
		doc, err := json.Marshal(obj)
		return err != nil || !strings.Contains(string(doc), text)
	}), err
}

func (w *world) CreateNamespace(_ context.Context, ns *corev1.Namespace) error {
	w.made = append(w.made, ns.Name)
	return nil
}

func (w *world) Kind(kind schema.GroupVersionKind) (schema.GroupVersionResource, bool) {
	if kind != corev1.SchemeGroupVersion.WithKind("ConfigMap") {
		return schema.GroupVersionResource{}, false
	}
	return corev1.SchemeGroupVersion.WithResource("configmaps"), true
}

func (w *world) Authorize(_ context.Context, _ *authn.User, verb string, on schema.GroupVersionResource, subresource,
	namespace, name string) (bool, string, error) {
	right := verb + " " + on.Resource
	if subresource != "" {
		right += "/" + subresource
	}
	if right += " "; namespace != "" {
		right += namespace + "/"
	}
	return slices.Contains(w.rights, right+name), "no right", nil
}

// resourceOf returns the resource of an object, by its Go type.
func resourceOf(obj api.Object) schema.GroupVersionResource {
	switch obj.(type) {
	case *corev1.Namespace:
		return corev1.SchemeGroupVersion.WithResource("namespaces")
	case *corev1.Node:
		return corev1.SchemeGroupVersion.WithResource("nodes")
	case *corev1.Pod, *corev1.Binding, *policyv1.Eviction:
		return corev1.SchemeGroupVersion.WithResource("pods")
	case *corev1.ServiceAccount, *authenticationv1.TokenRequest:
		return corev1.SchemeGroupVersion.WithResource("serviceaccounts")
	case *corev1.ConfigMap:
		return corev1.SchemeGroupVersion.WithResource("configmaps")
	case *corev1.Service:
		return corev1.SchemeGroupVersion.WithResource("services")
	case *corev1.Event:
		return corev1.SchemeGroupVersion.WithResource("events")
	case *corev1.LimitRange:
		return corev1.SchemeGroupVersion.WithResource("limitranges")
	case *corev1.ResourceQuota:
		return corev1.SchemeGroupVersion.WithResource("resourcequotas")
	case *corev1.PersistentVolume:
		return corev1.SchemeGroupVersion.WithResource("persistentvolumes")
	case *corev1.PersistentVolumeClaim:
		return corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
	case *appsv1.Deployment:
		return appsv1.SchemeGroupVersion.WithResource("deployments")
	case *batchv1.CronJob:
		return batchv1.SchemeGroupVersion.WithResource("cronjobs")
	case *coordinationv1.Lease:
		return coordinationv1.SchemeGroupVersion.WithResource("leases")
	case *storagev1.CSINode:
		return storagev1.SchemeGroupVersion.WithResource("csinodes")
	case *storagev1.CSIDriver:
		return storagev1.SchemeGroupVersion.WithResource("csidrivers")
	case *storagev1.StorageClass:
		return storagev1.SchemeGroupVersion.WithResource("storageclasses")
	case *networkingv1.Ingress:
		return networkingv1.SchemeGroupVersion.WithResource("ingresses")
	case *networkingv1.ServiceCIDR:
		return networkingv1.SchemeGroupVersion.WithResource("servicecidrs")
	case *networkingv1.IngressClass:
		return networkingv1.SchemeGroupVersion.WithResource("ingressclasses")
	case *nodev1.RuntimeClass:
		return nodev1.SchemeGroupVersion.WithResource("runtimeclasses")
	case *schedulingv1.PriorityClass:
		return schedulingv1.SchemeGroupVersion.WithResource("priorityclasses")
	case *resourcev1.ResourceSlice:
		return resourcev1.SchemeGroupVersion.WithResource("resourceslices")
	case *certificatesv1.CertificateSigningRequest:
		return certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests")
	case *certificatesv1.PodCertificateRequest:
		return certificatesv1.SchemeGroupVersion.WithResource("podcertificaterequests")
	case *certificatesv1.ClusterTrustBundle:
		return certificatesv1.SchemeGroupVersion.WithResource("clustertrustbundles")
	}
	panic(fmt.Sprintf("no resource for %T", obj))
}

// meta returns the metadata of an object in the namespace default, with its name as its UID.
func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}
}

// clusterMeta returns the metadata of an object without a namespace.
func clusterMeta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, UID: types.UID(name)}
}

// made returns a copy of an object with some changes.
func made[T interface {
	api.Object
	DeepCopy() T
}](obj T, changes ...func(T)) T {
	obj = obj.DeepCopy()
	for _, change := range changes {
		change(obj)
	}
	return obj
}

func write(operation Operation, about, obj, old api.Object) *Attributes {
	return &Attributes{Operation: operation, Resource: resourceOf(about), Namespace: about.GetNamespace(),
		Name: about.GetName(), Object: obj, Old: old, User: &authn.User{Name: "jane"}}
}

func creates(obj api.Object) *Attributes      { return write(Create, obj, obj, nil) }
func updates(obj, old api.Object) *Attributes { return write(Update, obj, obj, old) }
func deletes(old api.Object) *Attributes      { return write(Delete, old, nil, old) }

// subresource makes a write one of a subresource of the object.
func subresource(a *Attributes, name string) *Attributes {
	a.Subresource = name
	return a
}

// as makes a write one by a user.
func as(a *Attributes, user string, groups ...string) *Attributes {
	a.User = &authn.User{Name: user, Groups: groups}
	return a
}

// plugin returns a plugin of the table, with a configuration as JSON unless that is "".
func (w *world) plugin(t testing.TB, name, config string) Plugin {
	t.Helper()
	i := slices.IndexFunc(Table, func(r Registration) bool { return r.Name == name })
	require.GreaterOrEqual(t, i, 0, name)
	env := &Env{Cluster: w, Metrics: newPluginMetrics(), Calls: calls.NewLog(),
		Options: Options{Clock: clocktesting.NewFakePassiveClock(time.Unix(1e9, 0)),
			TokenAudiences: w.tokenAudiences,
			Config:         Config{name: json.RawMessage(config)}}}
	p, err := Table[i].New(env)
	require.NoError(t, err)
	return p
}

// admit lets one plugin of the table change and then validate a write. The plugin's line must cover the write.
func (w *world) admit(t testing.TB, name, config string, a *Attributes) error {
	t.Helper()
	require.True(t, slices.ContainsFunc(Table, func(r Registration) bool {
		return r.Name == name && slices.ContainsFunc(r.On, func(r Rule) bool { return r.covers(a) })
	}), "%s is not called for this write", name)
	if a.Warn == nil {
		a.Warn, a.Audit = func(string) {}, func(string, string) {}
	}
	p := w.plugin(t, name, config)
	if m, ok := p.(Mutator); ok {
		if err := m.Mutate(t.Context(), a); err != nil {
			return err
		}
	}
	if v, ok := p.(Validator); ok {
		return v.Validate(t.Context(), a)
	}
	return nil
}

// decision is one write and the expected decision of a plugin.
type decision struct {
	name  string
	write *Attributes
	// words are a part of the error; "" if the write is admitted.
	words string
	// reason is the error's; Forbidden if it is "".
	reason metav1.StatusReason
}

// decides requires the decisions of one plugin of the table.
func (w *world) decides(t *testing.T, plugin, config string, decisions []decision) {
	t.Helper()
	for _, d := range decisions {
		t.Run(d.name, func(t *testing.T) {
			requireDecision(t, d, w.admit(t, plugin, config, d.write))
		})
	}
}

func requireDecision(t *testing.T, d decision, err error) {
	t.Helper()
	if d.words == "" {
		require.NoError(t, err)
		return
	}
	require.ErrorContains(t, err, d.words)
	require.Equal(t, cmp.Or(d.reason, metav1.StatusReasonForbidden), apierrors.ReasonForError(err))
}
