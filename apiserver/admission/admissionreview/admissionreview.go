// Package admissionreview encodes the AdmissionReview requests for admission webhooks and decodes their responses,
// in the versions v1 and v1beta1 of admission.k8s.io.
//
// Question.Encode makes the bytes of a request from a Question and its documents. Decode makes an Answer of the
// bytes of a response (answer.go); its patch is applied to a document (patch.go). The package does no I/O, and
// checks every part of a response before it is used.
//
// https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#webhook-request-and-response
package admissionreview

import (
	"encoding/json"
	"fmt"

	admissionv1 "k8s.io/api/admission/v1"
	admissionv1beta1 "k8s.io/api/admission/v1beta1"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Question is an AdmissionReview's request. v1 and v1beta1 have the same fields.
type Question struct {
	UID types.UID `json:"uid"`
	// Kind and Resource are the ones that the webhook's rules match; RequestKind and RequestResource are the
	// request's.
	Kind               metav1.GroupVersionKind     `json:"kind"`
	Resource           metav1.GroupVersionResource `json:"resource"`
	Subresource        string                      `json:"subResource,omitempty"`
	RequestKind        metav1.GroupVersionKind     `json:"requestKind"`
	RequestResource    metav1.GroupVersionResource `json:"requestResource"`
	RequestSubresource string                      `json:"requestSubResource,omitempty"`
	Name               string                      `json:"name,omitempty"`
	Namespace          string                      `json:"namespace,omitempty"`
	Operation          string                      `json:"operation"`
	User               authenticationv1.UserInfo   `json:"userInfo"`
	DryRun             bool                        `json:"dryRun"`
	// Documents are the objects of the request.
	Documents Documents `json:"-"`
}

// Documents are JSON. An empty one is sent as null.
type Documents struct{ Object, OldObject, Options []byte }

// Version returns the first version in a webhook's list that this package supports.
func Version(accepted []string) (string, error) {
	for _, version := range accepted {
		if version == admissionv1.SchemeGroupVersion.Version || version == admissionv1beta1.SchemeGroupVersion.Version {
			return version, nil
		}
	}
	return "", fmt.Errorf("webhook does not accept known AdmissionReview versions (v1, v1beta1)")
}

// Encode returns the AdmissionReview. The documents are included unchanged and unchecked.
func (q *Question) Encode(version string) ([]byte, error) {
	request, err := json.Marshal(q)
	if err != nil {
		return nil, fmt.Errorf("encoding an AdmissionReview: %w", err)
	}
	d := &q.Documents
	const framing = 256
	doc := make([]byte, 0, len(request)+len(d.Object)+len(d.OldObject)+len(d.Options)+framing)
	doc = append(doc, `{"kind":"AdmissionReview","apiVersion":"`+admissionv1.GroupName+"/"...)
	doc = append(doc, version...)
	doc = append(doc, `","request":`...)
	doc = append(doc, request[:len(request)-1]...)
	for _, member := range []struct {
		name string
		doc  []byte
	}{{"object", d.Object}, {"oldObject", d.OldObject}, {"options", d.Options}} {
		doc = append(doc, `,"`+member.name+`":`...)
		if len(member.doc) == 0 {
			doc = append(doc, "null"...)
			continue
		}
		doc = append(doc, member.doc...)
	}
	return append(doc, "}}"...), nil
}
