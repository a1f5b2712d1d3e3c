package admission

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
)

var resourceSlices = group("resource.k8s.io", "resourceslices")

// podCertificate lets a node request certificates for its pods, from the signers that they name (KEP-4317).
func (p *nodeRestriction) podCertificate(ctx context.Context, node string, a *Attributes) error {
	switch {
	case a.Operation != Create:
		return fmt.Errorf("unexpected operation %s", a.Operation)
	case a.Subresource != "":
		return fmt.Errorf("unexpected subresource %s", a.Subresource)
	}
	request := a.Object.(*certificatesv1.PodCertificateRequest)
	spec := &request.Spec
	if string(spec.NodeName) != node {
		return fmt.Errorf("PodCertificateRequest.Spec.NodeName=%q, which is not the requesting node %q",
			spec.NodeName, node)
	}
	is, err := get[*corev1.Node](ctx, p.cluster, nodes, "", node)
	if err != nil {
		return namedMissing(err, "node", node)
	}
	if is.UID != spec.NodeUID {
		return fmt.Errorf("PodCertificateRequest names node UID %q, inconsistent with the running node (%q)",
			spec.NodeUID, is.UID)
	}
	pod, err := p.certifiedPod(ctx, node, a.Namespace, spec)
	if err != nil {
		return err
	}
	account, err := get[*corev1.ServiceAccount](ctx, p.cluster, serviceAccounts, a.Namespace, spec.ServiceAccountName)
	if err != nil {
		return namedMissing(err, "service account", a.Namespace+"/"+spec.ServiceAccountName)
	}
	if account.UID != spec.ServiceAccountUID {
		return fmt.Errorf("PodCertificateRequest for pod %q names service account UID %q, which differs from the "+
			"running service account (%q)",
			a.Namespace+"/"+pod.Name, spec.ServiceAccountUID, account.UID)
	}
	return p.certifyingSigner(ctx, a, pod, spec)
}

// certifiedPod returns the pod that a certificate is requested for, if it runs on the node and matches the request.
func (p *nodeRestriction) certifiedPod(ctx context.Context, node, namespace string,
	spec *certificatesv1.PodCertificateRequestSpec) (*corev1.Pod, error) {
	ref := namespace + "/" + spec.PodName
	pod, err := get[*corev1.Pod](ctx, p.cluster, pods, namespace, spec.PodName)
	switch {
	case err != nil:
		return nil, namedMissing(err, "pod", ref)
	case pod.UID != spec.PodUID:
		return nil, fmt.Errorf(
			"PodCertificateRequest for pod %q contains pod UID (%q) which differs from running pod %q", ref,
			spec.PodUID, pod.UID)
	case pod.Spec.NodeName != node:
		return nil, fmt.Errorf("pod %q is not running on node %q named in the PodCertificateRequest", ref, node)
	case isMirror(pod):
		return nil, fmt.Errorf("pod %q is a mirror pod", ref)
	case pod.Spec.ServiceAccountName != spec.ServiceAccountName:
		return nil, fmt.Errorf("PodCertificateRequest for pod %q contains serviceAccountName (%q) that differs "+
			"from running pod (%q)", ref, spec.ServiceAccountName, pod.Spec.ServiceAccountName)
	}
	return pod, nil
}

// certifyingSigner requires the pod to have a volume with a certificate of the signer, or the node to
// be authorized to request the service account's certificates from it.
func (p *nodeRestriction) certifyingSigner(ctx context.Context, a *Attributes, pod *corev1.Pod,
	spec *certificatesv1.PodCertificateRequestSpec) error {
	for _, volume := range pod.Spec.Volumes {
		if volume.Projected != nil && slices.ContainsFunc(volume.Projected.Sources,
			func(s corev1.VolumeProjection) bool {
				return s.PodCertificate != nil && s.PodCertificate.SignerName == spec.SignerName
			}) {
			return nil
		}
	}
	on := certificatesv1.SchemeGroupVersion.WithResource(strings.ReplaceAll(spec.SignerName, "/", ":"))
	if ok, _, err := p.cluster.Authorize(ctx, a.User, "request-serviceaccounts-podcertificate-signer", on, "",
		a.Namespace, spec.ServiceAccountName); ok && err == nil {
		return nil
	}
	return fmt.Errorf("pod %q does not have a podCertificate projection for signer %q", a.Namespace+"/"+pod.Name,
		spec.SignerName)
}

// namedMissing returns the error for a missing object that a request names. The object may not have reached memory
// yet: the node may retry.
func namedMissing(err error, kind, name string) error {
	if !errors.Is(err, ErrNotFound) {
		return err
	}
	return apierrors.NewInternalError(fmt.Errorf("while retrieving %s %q named in the PodCertificateRequest: not found",
		kind, name))
}

// restrictSigningRequest limits a node to certificates for itself.
func restrictSigningRequest(node string, a *Attributes) error {
	request := a.Object.(*certificatesv1.CertificateSigningRequest)
	if request.Spec.SignerName != certificatesv1.KubeletServingSignerName &&
		request.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName {
		return nil
	}
	block, _ := pem.Decode(request.Spec.Request)
	if block == nil {
		return errors.New("unable to parse csr: PEM block type must be CERTIFICATE REQUEST")
	}
	parsed, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return fmt.Errorf("unable to parse csr: %w", err)
	}
	if want := "system:node:" + node; parsed.Subject.CommonName != want {
		return fmt.Errorf("can only create a node CSR with CN=%s", want)
	}
	return nil
}

// restrictSlice limits a node to its own devices. The Node authorizer has checked the slices that it updates.
func restrictSlice(node string, a *Attributes) error {
	slice, verb := a.Object, "create"
	if a.Operation == Delete {
		slice, verb = a.Old, "delete"
	}
	if ptr.Deref(slice.(*resourcev1.ResourceSlice).Spec.NodeName, "") != node {
		return fmt.Errorf("can only %s ResourceSlice with the same NodeName as the requesting node", verb)
	}
	return nil
}
