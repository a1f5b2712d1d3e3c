// Package certificates is the group certificates.k8s.io/v1: requests for certificates, those of pods
// among them, and the bundles by which certificates are trusted.
package certificates

import (
	"time"

	"github.com/coxswain-dev/coxswain/api"
)

// Kinds returns the kinds of certificates.k8s.io, in the order of discovery. Each call makes new registrations.
func Kinds(now func() time.Time) []*api.Resource {
	return references.In(certificateSigningRequests(), clusterTrustBundles(), podCertificateRequests(now))
}
