package structural

import (
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"
	"sigs.k8s.io/yaml"
)

// certificate is a schema of usual size that uses most features.
const certificate = `
type: object
required: [spec]
properties:
  apiVersion: {type: string}
  kind: {type: string}
  metadata: {type: object}
  spec:
    type: object
    required: [issuerRef, secretName]
    properties:
      commonName: {type: string, maxLength: 64}
      dnsNames: {type: array, items: {type: string, maxLength: 253, pattern: '^[a-z0-9.*-]+$'}, maxItems: 100}
      duration: {type: string}
      renewBefore: {type: string}
      issuerRef:
        type: object
        required: [name]
        properties:
          name: {type: string, minLength: 1}
          kind: {type: string, default: Issuer}
          group: {type: string, default: cert-manager.io}
      privateKey:
        type: object
        properties:
          algorithm: {type: string, enum: [RSA, ECDSA, Ed25519]}
          size: {type: integer, format: int32, minimum: 1}
          rotationPolicy: {type: string, enum: [Never, Always], default: Always}
      secretName: {type: string, minLength: 1, maxLength: 253}
      usages: {type: array, x-kubernetes-list-type: set, items: {type: string, enum: [digital signature, server auth]}}
      subject: {type: object, properties: {organizations: {type: array, items: {type: string}}}}
      port: {x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}]}
  status:
    type: object
    properties:
      conditions:
        type: array
        x-kubernetes-list-type: map
        x-kubernetes-list-map-keys: [type]
        items:
          type: object
          required: [type, status]
          properties:
            type: {type: string}
            status: {type: string, enum: ["True", "False", Unknown]}
            lastTransitionTime: {type: string, format: date-time}
            message: {type: string}
`

const certificateObject = `
apiVersion: cert-manager.io/v1
kind: Certificate
metadata: {name: web, namespace: default}
spec:
  commonName: example.com
  dnsNames: [example.com, www.example.com, api.example.com, "*.example.com"]
  duration: 2160h
  issuerRef: {name: ca}
  privateKey: {algorithm: ECDSA, size: 256}
  secretName: web-tls
  usages: [digital signature, server auth]
  subject: {organizations: [acme]}
  port: 8443
status:
  conditions:
  - {type: Ready, status: "True", lastTransitionTime: "2026-01-02T03:04:05Z", message: up to date}
  - {type: Issuing, status: "False", lastTransitionTime: "2026-01-02T03:04:05Z", message: ""}
`

// BenchmarkWrite measures the schema work for a create of a Certificate: prune, defaults, and each of the checks.
func BenchmarkWrite(b *testing.B) {
	s, obj := parse(b, certificate), read(b, certificateObject)
	b.ReportAllocs()
	for b.Loop() {
		s.Prune(obj, true)
		s.DropNulls(obj)
		s.Default(obj)
		_, _ = s.Coerce(obj, false, true)
		errs, _ := s.Validate(b.Context(), obj)
		if errs = append(append(errs, s.ValidateEmbedded(obj)...), s.ValidateLists(obj)...); len(errs) > 0 {
			b.Fatal(errs)
		}
	}
}

// BenchmarkValidateUpdate validates an update without changes.
func BenchmarkValidateUpdate(b *testing.B) {
	s, obj := parse(b, certificate), read(b, certificateObject)
	old := runtime.DeepCopyJSON(obj)
	b.ReportAllocs()
	for b.Loop() {
		if errs, _ := s.ValidateUpdate(b.Context(), obj, old); len(errs) > 0 {
			b.Fatal(errs)
		}
	}
}

// BenchmarkValidate compares Validate with kube-openapi's validator.
func BenchmarkValidate(b *testing.B) {
	s, obj := parse(b, certificate), read(b, certificateObject)
	b.Run("here", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if errs, _ := s.Validate(b.Context(), obj); len(errs) > 0 {
				b.Fatal(errs)
			}
		}
	})
	b.Run("kube-openapi", func(b *testing.B) {
		var props apiextensionsv1.JSONSchemaProps
		require.NoError(b, yaml.UnmarshalStrict([]byte(certificate), &props))
		library := openAPI(b, &props)
		b.ReportAllocs()
		for b.Loop() {
			if r := validate.NewSchemaValidator(library, nil, "", strfmt.Default).Validate(obj); len(r.Errors) > 0 {
				b.Fatal(r.Errors)
			}
		}
	})
}

// BenchmarkValidateRules evaluates ten rules.
func BenchmarkValidateRules(b *testing.B) {
	props := properties(b, certificate)
	for _, source := range []string{
		"self.spec.secretName != self.metadata.name", "self.spec.dnsNames.all(n, n.contains('.'))",
		"!has(self.spec.privateKey) || self.spec.privateKey.size > 100", "self.spec.issuerRef.name.startsWith('c')",
		"has(self.spec.commonName) || size(self.spec.dnsNames) > 0", "self.spec.duration.endsWith('h')",
		"!has(self.spec.subject) || self.spec.subject.organizations.size() < 5", "self.kind == 'Certificate'",
		"self.spec.usages.exists(u, u == 'server auth')", "type(self.spec.port) == int && self.spec.port > 0",
	} {
		props.XValidations = append(props.XValidations, apiextensionsv1.ValidationRule{Rule: source})
	}
	s, err := New(props)
	require.NoError(b, err)
	obj := read(b, certificateObject)
	b.ReportAllocs()
	for b.Loop() {
		if errs, _, err := s.ValidateRules(b.Context(), obj, nil); len(errs) > 0 || err != nil {
			b.Fatal(errs, err)
		}
	}
}

// BenchmarkNew compiles the schema, as the first use of a definition does.
func BenchmarkNew(b *testing.B) {
	var props apiextensionsv1.JSONSchemaProps
	require.NoError(b, yaml.UnmarshalStrict([]byte(certificate), &props))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := New(&props); err != nil {
			b.Fatal(err)
		}
	}
}
