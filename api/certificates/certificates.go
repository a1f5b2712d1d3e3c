// Package certificates is the group certificates.k8s.io/v1: requests for certificates, also for pods, and bundles
// of trusted certificates.
package certificates

import (
	"time"

	"github.com/coxswain-dev/coxswain/api"
)

// Kinds returns the kinds of certificates.k8s.io, in the order of discovery. Each call makes new registrations.
func Kinds(now func() time.Time) []*api.Resource {
	return references.In(certificateSigningRequests(), clusterTrustBundles(), podCertificateRequests(now))
}
