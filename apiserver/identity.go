package apiserver

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

// A server tells clients that it is there by a Lease in kube-system (KEP-1965). It is renewed in the transaction by
// which the server notes its presence, and stays when the server ends: who keeps house for Leases deletes it when it has
// expired.

const (
	// IdentityLabel marks such Leases; its value says of what sort the server is.
	IdentityLabel = "apiserver.kubernetes.io/identity"
	// identitySort is ours: clients know it by no other name.
	identitySort = "kube-apiserver"
	// identityDuration is how long a Lease that is not renewed counts, kube-apiserver's hour.
	identityDuration = time.Hour
)

// serverIdentity is a server as its Lease has it.
type serverIdentity struct {
	name     string // of the Lease: the same after a restart
	holder   string // this run of the server
	hostname string
}

// newIdentity is that of a server which listens at addr. Where kube-apiserver's name tells machines apart, ours tells
// servers of one machine apart as well, by their ports.
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

// ownObjects are the writes by which a server that is there says what it does so.
func (s *Server) ownObjects(ctx context.Context) ([]storage.Write, error) {
	lease, err := s.identityLease(ctx)
	if err != nil {
		return nil, err
	}
	since, err := s.tokenTracking(ctx)
	return slices.Concat(lease, since), err
}

func (s *Server) identityLease(ctx context.Context) ([]storage.Write, error) {
	res := s.Registry.Snapshot().Kind(coordinationv1.SchemeGroupVersion.WithKind("Lease"))
	if res == nil {
		return nil, nil
	}
	fresh := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: s.identity.name}}
	return s.put(ctx, res, fresh, func(obj api.Object) {
		lease, now := obj.(*coordinationv1.Lease), metav1.NewMicroTime(s.Clock.Now())
		if lease.Labels == nil {
			lease.Labels = map[string]string{}
		}
		lease.Labels[IdentityLabel], lease.Labels[corev1.LabelHostname] = identitySort, s.identity.hostname
		if holder := lease.Spec.HolderIdentity; holder == nil || *holder != s.identity.holder {
			lease.Spec.HolderIdentity, lease.Spec.AcquireTime = &s.identity.holder, nil
		}
		lease.Spec.LeaseDurationSeconds = new(int32(identityDuration / time.Second))
		lease.Spec.RenewTime = &now
	})
}
