package admissionreview

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	admissionv1beta1 "k8s.io/api/admission/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/apiserver/encoding"
)

// Answer is an AdmissionReview's response, in the form of v1.
type Answer struct {
	Allowed bool
	// Result is the reason why the request is not allowed; it may be nil.
	Result *metav1.Status
	// Patch and PatchType are for mutating webhooks.
	Patch     []byte
	PatchType admissionv1.PatchType
	// AuditAnnotations lack the webhook's name as prefix.
	AuditAnnotations map[string]string
	Warnings         []string
}

// codec decodes like kube-apiserver's, so that a malformed answer gives the same error text.
var codec = func() runtime.Codec {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{admissionv1beta1.AddToScheme, admissionv1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err) // both always succeed
		}
	}
	return serializer.NewCodecFactory(scheme).LegacyCodec(admissionv1beta1.SchemeGroupVersion,
		admissionv1.SchemeGroupVersion)
}()

// Response is the HTTP response of a webhook's server.
type Response struct {
	Code        int
	ContentType string
	// Body is the answer's content, or its beginning if the code is not a success.
	Body []byte
}

// Review is a decoded AdmissionReview that has not been checked yet.
type Review struct {
	v1      *admissionv1.AdmissionReview
	v1beta1 *admissionv1beta1.AdmissionReview
}

// Decode decodes the response to a request of the version. Its errors are the ones of a Kubernetes client: a Status
// if the code is not a success, and any error if the response cannot be decoded.
func Decode(version string, r Response) (*Review, error) {
	if r.Code < http.StatusOK || r.Code > http.StatusPartialContent {
		return nil, failed(r)
	}
	if len(r.Body) == 0 {
		return nil, fmt.Errorf("0-length response with status code: %d and content type: %s", r.Code, r.ContentType)
	}
	if err := encoding.CheckDepth(r.Body); err != nil {
		return nil, errors.New(err.Error())
	}
	review := &Review{}
	var into runtime.Object
	if version == admissionv1.SchemeGroupVersion.Version {
		review.v1 = &admissionv1.AdmissionReview{}
		into = review.v1
	} else {
		review.v1beta1 = &admissionv1beta1.AdmissionReview{}
		into = review.v1beta1
	}
	if _, _, err := codec.Decode(r.Body, nil, into); err != nil {
		return nil, err
	}
	return review, nil
}

// failed returns the error for a response with an error code: the Status in it, or one with its text.
func failed(r Response) error {
	const quoted = 2048
	message := "unknown"
	if kind, _, _ := strings.Cut(r.ContentType, ";"); kind == "" || strings.HasPrefix(kind, "text/") {
		message = strings.TrimSpace(string(r.Body[:min(len(r.Body), quoted)]))
	}
	err := apierrors.NewGenericServerResponse(r.Code, http.MethodPost, schema.GroupResource{}, "", message, 0, true)
	if !apierrors.IsUnexpectedServerError(err) || len(r.Body) == 0 {
		return err
	}
	decoded, _, broken := codec.Decode(r.Body, &schema.GroupVersionKind{Version: "v1", Kind: "Status"}, nil)
	if broken != nil {
		return err
	}
	if status, ok := decoded.(*metav1.Status); ok && status.Status == metav1.StatusFailure {
		return apierrors.FromObject(status)
	}
	return err
}

// Check returns the answer of a review, or an error if it does not answer the request with this UID.
func (r *Review) Check(uid types.UID, mutating bool) (*Answer, error) {
	if r.v1beta1 != nil {
		return r.checkBeta(mutating)
	}
	response := r.v1.Response
	if response == nil {
		return nil, errors.New("webhook response was absent")
	}
	if response.UID != uid {
		return nil, fmt.Errorf("expected response.uid=%q, got %q", uid, response.UID)
	}
	want := admissionv1.SchemeGroupVersion.WithKind("AdmissionReview")
	if got := r.v1.GroupVersionKind(); got != want {
		return nil, fmt.Errorf("expected webhook response of %v, got %v", want, got)
	}
	if err := checkPatch(response, mutating); err != nil {
		return nil, err
	}
	answer := &Answer{Allowed: response.Allowed, Result: response.Result, Patch: response.Patch,
		AuditAnnotations: response.AuditAnnotations, Warnings: response.Warnings}
	if response.PatchType != nil {
		answer.PatchType = *response.PatchType
	}
	return answer, nil
}

// checkBeta is laxer, as v1beta1 has always been: it accepts any UID and kind, and every patch is a JSON patch.
func (r *Review) checkBeta(mutating bool) (*Answer, error) {
	response := r.v1beta1.Response
	if response == nil {
		return nil, errors.New("webhook response was absent")
	}
	answer := &Answer{Allowed: response.Allowed, Result: response.Result, AuditAnnotations: response.AuditAnnotations,
		Warnings: response.Warnings}
	if mutating && len(response.Patch) > 0 {
		answer.Patch, answer.PatchType = response.Patch, admissionv1.PatchTypeJSONPatch
	}
	return answer, nil
}

// checkPatch requires patch and patchType together, and accepts them from a mutating webhook alone.
func checkPatch(r *admissionv1.AdmissionResponse, mutating bool) error {
	switch {
	case !mutating && len(r.Patch) > 0:
		return errors.New("validating webhook may not return response.patch")
	case !mutating && r.PatchType != nil:
		return errors.New("validating webhook may not return response.patchType")
	case len(r.Patch) > 0 && r.PatchType == nil:
		return errors.New("webhook returned response.patch but not response.patchType")
	case len(r.Patch) == 0 && r.PatchType != nil:
		return errors.New("webhook returned response.patchType but not response.patch")
	case r.PatchType != nil && *r.PatchType == "":
		return fmt.Errorf("webhook returned invalid response.patchType of %q", *r.PatchType)
	}
	return nil
}

// maxCode is the largest code that HTTP can transport.
const maxCode = 999

// Denied returns the error for a request that a webhook denies. It is the webhook's own Status with these changes:
// a code below 400 becomes 400, a code above maxCode becomes 500, and the message names the webhook.
func Denied(webhook string, result *metav1.Status) *apierrors.StatusError {
	status := metav1.Status{Status: metav1.StatusFailure}
	if result != nil {
		status = *result
	}
	if status.Code < http.StatusBadRequest {
		status.Code = http.StatusBadRequest
	}
	if status.Code > maxCode {
		status.Code = http.StatusInternalServerError
	}
	if status.Status == "" || status.Status == metav1.StatusSuccess {
		status.Status = metav1.StatusFailure
	}
	denied := fmt.Sprintf("admission webhook %q denied the request", webhook)
	switch {
	case status.Message != "":
		status.Message = denied + ": " + status.Message
	case status.Reason != "":
		status.Message = denied + ": " + string(status.Reason)
	default:
		status.Message = denied + " without explanation"
	}
	return &apierrors.StatusError{ErrStatus: status}
}
