package controlplane

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/storage"
)

// A server's Lease in kube-system shows clients that the server runs (KEP-1965). The Lease is renewed in the
// transaction that renews the server's presence, and stays when the server ends: a controller deletes it once it has
// expired.

const (
	// IdentityLabel marks such Leases; its value is the kind of server.
	IdentityLabel = "apiserver.kubernetes.io/identity"
	// identitySort is the kind of server that clients know.
	identitySort = "kube-apiserver"
	// identityDuration is the time that a Lease is valid without renewal: an hour, as in kube-apiserver.
	identityDuration = time.Hour
)

// serverIdentity is the data of a server's Lease. Join sets it, before Run.
type serverIdentity struct {
	name     string // of the Lease: the same after a restart
	holder   string // this run of the server
	hostname string
}

// newIdentity returns the identity of a server that listens at addr. kube-apiserver's name distinguishes machines; ours
// includes the port, so that it distinguishes servers on one machine as well.
func newIdentity(addr net.Addr) serverIdentity {
	hostname, err := os.Hostname()
	if err != nil {
		hostname = "localhost"
	}
	_, port, _ := net.SplitHostPort(addr.String()) // a listener's address has a port
	digest := sha256.Sum256([]byte(hostname + ":" + port))
	name := "apiserver-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(digest[:16]))
	return serverIdentity{name: name, holder: name + "_" + string(uuid.NewUUID()), hostname: hostname}
}

// ownObjects returns the writes of the objects that describe a running server.
func (c *ControlPlane) ownObjects(ctx context.Context) ([]storage.Write, error) {
	lease, err := c.identityLease(ctx)
	if err != nil {
		return nil, err
	}
	since, err := c.tokenTracking(ctx)
	return slices.Concat(lease, since), err
}

func (c *ControlPlane) identityLease(ctx context.Context) ([]storage.Write, error) {
	res := c.Registry.Snapshot().Kind(coordinationv1.SchemeGroupVersion.WithKind("Lease"))
	if res == nil {
		return nil, nil
	}
	fresh := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem,
		Name: c.identity.name}}
	return c.put(ctx, res, fresh, func(obj api.Object) {
		lease, now := obj.(*coordinationv1.Lease), metav1.NewMicroTime(c.Clock.Now())
		if lease.Labels == nil {
			lease.Labels = map[string]string{}
		}
		lease.Labels[IdentityLabel], lease.Labels[corev1.LabelHostname] = identitySort, c.identity.hostname
		if holder := lease.Spec.HolderIdentity; holder == nil || *holder != c.identity.holder {
			lease.Spec.HolderIdentity, lease.Spec.AcquireTime = &c.identity.holder, nil
		}
		lease.Spec.LeaseDurationSeconds = new(int32(identityDuration / time.Second))
		lease.Spec.RenewTime = &now
	})
}
