package servicealloc_test

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/apiserver/loopback"
	"github.com/coxswain-dev/coxswain/apiserver/servicealloc"
	"github.com/coxswain-dev/coxswain/storage"
	"github.com/coxswain-dev/coxswain/testenv/servertest"
)

// objects implements loopback.Client on a store without a server.
type objects struct {
	loopback.Client // for the methods that are not called
	store           *storage.Store
}

func (o objects) Collection(res *api.Resource) *storage.Collection {
	return o.store.Collection(res.Collection(), storage.CollectionOptions{Fields: res.SelectablePaths(),
		Index: res.FieldIndex})
}

func (o objects) Commit(ctx context.Context, writes ...storage.Write) (*storage.CommitResult, error) {
	return o.store.Commit(ctx, writes...)
}

func (o objects) Create(res *api.Resource, obj api.Object) (storage.Write, error) {
	obj.SetUID(types.UID(obj.GetName()))
	doc, err := encoding.Encode(res, obj)
	return storage.Write{Op: storage.Create, Key: storage.Key{Collection: res.Collection(),
		Namespace: obj.GetNamespace(), Name: obj.GetName()}, Value: doc}, err
}

func newAllocator(t *testing.T, o servicealloc.Options) *servicealloc.Allocator {
	t.Helper()
	if o.Store == nil {
		o.Store = servertest.Store(t, servertest.Backend(t), storage.Options{})
	}
	o.Objects, o.Log = objects{store: o.Store}, slog.New(slog.DiscardHandler)
	o.Kinds = api.NewRegistry(builtin.Kinds()...).Snapshot()
	a, err := servicealloc.New(o)
	require.NoError(t, err)
	return a
}

func TestNew_RejectsInvalidRanges(t *testing.T) {
	t.Parallel()
	cidrs := func(texts ...string) (all []netip.Prefix) {
		for _, text := range texts {
			all = append(all, netip.MustParsePrefix(text))
		}
		return all
	}
	for name, c := range map[string]struct {
		cidrs   []netip.Prefix
		ports   utilnet.PortRange
		refused string
	}{
		"defaults":     {},
		"two families": {cidrs: cidrs("fd00::/112", "10.0.0.0/24")},
		"one family twice": {cidrs: cidrs("10.0.0.0/24", "10.1.0.0/24"),
			refused: "--service-cluster-ip-range must hold one CIDR, or one of each IP family"},
		"three": {cidrs: cidrs("10.0.0.0/24", "fd00::/112", "fd01::/112"), refused: "must hold one CIDR"},
		"small": {cidrs: cidrs("10.0.0.0/30"), refused: "10.0.0.0/30 has less than 8 addresses"},
		"ports past the end": {ports: utilnet.PortRange{Base: 65000, Size: 1000},
			refused: "--service-node-port-range: 65000-65999 is not a range of ports"},
		"no port": {ports: utilnet.PortRange{Base: 1, Size: -1}, refused: "is not a range of ports"},
	} {
		_, err := servicealloc.New(servicealloc.Options{Kinds: api.NewRegistry().Snapshot(), CIDRs: c.cidrs,
			NodePorts: c.ports})
		if c.refused == "" {
			require.NoError(t, err, name)
		} else {
			require.ErrorContains(t, err, c.refused, name)
		}
	}
	var some []*api.Resource
	for _, r := range builtin.Kinds() {
		if r.Kind != "IPAddress" {
			some = append(some, r)
		}
	}
	_, err := servicealloc.New(servicealloc.Options{Kinds: api.NewRegistry(some...).Snapshot()})
	require.ErrorContains(t, err, "has Service, but not both of IPAddress and ServiceCIDR")
}

func TestAllocate_ReservesInTheSameTransaction(t *testing.T) {
	t.Parallel()
	store := servertest.Store(t, servertest.Backend(t), storage.Options{})
	a := newAllocator(t, servicealloc.Options{Store: store})
	ctx := t.Context()
	first, free := a.First()
	require.Equal(t, "10.96.0.1", first)
	require.True(t, free)

	service := newService("a", corev1.ServiceTypeNodePort)
	service.Namespace = "default"
	got, writes, err := a.Allocate(ctx, service, nil)
	require.NoError(t, err)
	made := got.(*corev1.Service)
	require.Empty(t, service.Spec.ClusterIP, "the argument is left alone")
	require.NotEmpty(t, made.Spec.ClusterIP)
	require.NotZero(t, made.Spec.Ports[0].NodePort)
	require.Len(t, writes, 2, "an address and a port")
	for _, w := range writes {
		require.Equal(t, storage.Create, w.Op)
	}
	commit := func() {
		_, err := store.Commit(ctx, writes...)
		require.NoError(t, err)
		_, err = store.Revision(ctx) // memory, used to choose and refuse reservations, is current now
		require.NoError(t, err)
	}
	commit()
	_, err = store.Commit(ctx, writes...)
	require.ErrorIs(t, err, storage.ErrExists, "another server has the address")

	taken := newService("b", corev1.ServiceTypeClusterIP)
	taken.Namespace, taken.Spec.ClusterIP, taken.Spec.ClusterIPs = "default", made.Spec.ClusterIP, made.Spec.ClusterIPs
	_, _, err = a.Allocate(ctx, taken, nil)
	require.Len(t, causes(t, err), 1)
	require.ErrorContains(t, err, "already allocated")

	_, writes, err = a.Allocate(ctx, made, made)
	require.NoError(t, err)
	require.Empty(t, writes, "nothing has changed")

	_, writes, err = a.Allocate(ctx, nil, made)
	require.NoError(t, err)
	require.Len(t, writes, 2)
	commit()
	_, writes, err = a.Allocate(ctx, taken, nil)
	require.NoError(t, err, "the address is free again")
	require.Len(t, writes, 1)
}

func TestAllocate_IgnoresOtherKinds(t *testing.T) {
	t.Parallel()
	a, err := servicealloc.New(servicealloc.Options{Kinds: api.NewRegistry().Snapshot()})
	require.NoError(t, err)
	for _, obj := range []api.Object{&corev1.Pod{}, newService("not-served", corev1.ServiceTypeClusterIP),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}} {
		got, writes, err := a.Allocate(t.Context(), obj, nil)
		require.NoError(t, err)
		require.Same(t, obj, got)
		require.Empty(t, writes)
	}
}
