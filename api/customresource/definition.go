package customresource

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/version"
)

// Definition is a stored CustomResourceDefinition without the schemas of its versions. It is immutable.
type Definition struct {
	Name              string
	UID               types.UID
	Annotations       map[string]string
	CreationTimestamp metav1.Time
	DeletionTimestamp *metav1.Time
	Finalizers        []string
	Status            apiextensionsv1.CustomResourceDefinitionStatus
	Spec              Spec
	// Converter converts objects between the versions if the conversion strategy is Webhook. It must be set before
	// Kinds is called.
	Converter Converter

	spec []byte // the spec's part of the document
	doc  []byte

	hashing sync.Once
	hash    [sha256.Size]byte // set by hashing
}

// Spec is a definition's spec without its schemas.
type Spec struct {
	Group                 string                                        `json:"group"`
	Names                 apiextensionsv1.CustomResourceDefinitionNames `json:"names"`
	Scope                 apiextensionsv1.ResourceScope                 `json:"scope"`
	Versions              []SpecVersion                                 `json:"versions"`
	PreserveUnknownFields bool                                          `json:"preserveUnknownFields"`
	Conversion            *apiextensionsv1.CustomResourceConversion     `json:"conversion"`
}

// SpecVersion is a version in a definition's spec without its schema.
type SpecVersion struct {
	Name                     string                                           `json:"name"`
	Served                   bool                                             `json:"served"`
	Storage                  bool                                             `json:"storage"`
	Deprecated               bool                                             `json:"deprecated"`
	DeprecationWarning       *string                                          `json:"deprecationWarning"`
	Subresources             *apiextensionsv1.CustomResourceSubresources      `json:"subresources"`
	AdditionalPrinterColumns []apiextensionsv1.CustomResourceColumnDefinition `json:"additionalPrinterColumns"`
	SelectableFields         []apiextensionsv1.SelectableField                `json:"selectableFields"`
}

// Read parses a stored CustomResourceDefinition. The definition keeps the document, which must not change. It returns
// an error if no version is the storage version.
func Read(doc []byte) (*Definition, error) {
	var parts struct {
		Metadata struct {
			Name              string            `json:"name"`
			UID               types.UID         `json:"uid"`
			Annotations       map[string]string `json:"annotations"`
			CreationTimestamp metav1.Time       `json:"creationTimestamp"`
			DeletionTimestamp *metav1.Time      `json:"deletionTimestamp"`
			Finalizers        []string          `json:"finalizers"`
		} `json:"metadata"`
		Spec   specPart                                       `json:"spec"`
		Status apiextensionsv1.CustomResourceDefinitionStatus `json:"status"`
	}
	// A stored document has no duplicate names. Checking for them would take half of the time.
	if err := json.Unmarshal(doc, &parts, jsontext.AllowDuplicateNames(true)); err != nil {
		return nil, fmt.Errorf("reading a CustomResourceDefinition: %w", err)
	}
	if !slices.ContainsFunc(parts.Spec.Versions, func(v SpecVersion) bool { return v.Storage }) {
		return nil, errors.New("reading a CustomResourceDefinition: spec.versions: none has storage: true")
	}
	m := parts.Metadata
	d := &Definition{Name: m.Name, UID: m.UID, Annotations: m.Annotations, CreationTimestamp: m.CreationTimestamp,
		DeletionTimestamp: m.DeletionTimestamp, Finalizers: m.Finalizers,
		Status: parts.Status, Spec: parts.Spec.Spec, doc: doc}
	d.spec = bytes.TrimLeft(doc[parts.Spec.begin:parts.Spec.end], ": \t\r\n")
	return d, nil
}

// specPart is a spec with its position in the document.
type specPart struct {
	Spec
	begin, end int64
}

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (s *specPart) UnmarshalJSONFrom(decoder *jsontext.Decoder) error {
	s.begin = decoder.InputOffset() // after the name
	err := json.UnmarshalDecode(decoder, &s.Spec)
	s.end = decoder.InputOffset()
	return err
}

// Is reports whether a condition of the definition is true.
func (d *Definition) Is(condition apiextensionsv1.CustomResourceDefinitionConditionType) bool {
	return slices.ContainsFunc(d.Status.Conditions, func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
		return c.Type == condition && c.Status == apiextensionsv1.ConditionTrue
	})
}

// Served reports whether the definition's kind is served: it is established and has a served version.
func (d *Definition) Served() bool {
	return d.Is(apiextensionsv1.Established) &&
		slices.ContainsFunc(d.Spec.Versions, func(v SpecVersion) bool { return v.Served })
}

// Terminating reports whether the definition is being deleted. No new objects of its kind can be created then.
func (d *Definition) Terminating() bool {
	return d.DeletionTimestamp != nil || d.Is(apiextensionsv1.Terminating)
}

// SameKind reports whether two definitions define the same kind in the same way. It ignores differences in the
// metadata or the conditions, which do not affect the kind's objects.
func (d *Definition) SameKind(other *Definition) bool {
	a, b := &d.Status.AcceptedNames, &other.Status.AcceptedNames
	return d.UID == other.UID && bytes.Equal(d.spec, other.spec) &&
		a.Plural == b.Plural && a.Singular == b.Singular && a.Kind == b.Kind && a.ListKind == b.ListKind &&
		slices.Equal(a.ShortNames, b.ShortNames) && slices.Equal(a.Categories, b.Categories)
}

// Hash returns a hash of the definition's spec, including the schemas. It is the same in every process. The first call
// computes it.
func (d *Definition) Hash() [sha256.Size]byte {
	d.hashing.Do(func() { d.hash = sha256.Sum256(d.spec) })
	return d.hash
}

// deprecation returns the warning for each response in a version, or "".
func (d *Definition) deprecation(v *SpecVersion) string {
	switch {
	case !v.Deprecated:
		return ""
	case v.DeprecationWarning != nil:
		return *v.DeprecationWarning
	}
	text := fmt.Sprintf("%s/%s %s is deprecated", d.Spec.Group, v.Name, d.Spec.Names.Kind)
	best := ""
	for _, o := range d.Spec.Versions {
		if o.Served && !o.Deprecated && version.CompareKubeAwareVersionStrings(v.Name, o.Name) < 0 &&
			(best == "" || version.CompareKubeAwareVersionStrings(best, o.Name) < 0) {
			best = o.Name
		}
	}
	if best == "" {
		return text
	}
	return text + fmt.Sprintf("; use %s/%s %s", d.Spec.Group, best, d.Spec.Names.Kind)
}

// lastID is the ID of the newest Version.
var lastID atomic.Uint64
