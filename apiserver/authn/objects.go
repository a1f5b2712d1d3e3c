package authn

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Objects gives access to the objects that tokens depend on. All methods are safe for concurrent use.
type Objects interface {
	// Find looks up an object. A missing one is ErrNotFound.
	Find(ctx context.Context, resource schema.GroupResource, namespace, name string) (Found, error)
	// Secret returns a secret, which is shared and must not be changed. A missing one is ErrNotFound.
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
	// TokenUsed sets the Secret's LastUsedLabel to the day of its token's last use, in the form 2006-01-02.
	TokenUsed(ctx context.Context, secret *corev1.Secret, day string) error
}

// Found describes an object that exists.
type Found struct {
	UID string
	// Deleted is the object's deletionTimestamp; zero if it has none.
	Deleted time.Time
}

// ErrNotFound is the error of Objects for an object that does not exist.
var ErrNotFound = errors.New("not found")

var (
	pods            = schema.GroupResource{Resource: "pods"}
	nodes           = schema.GroupResource{Resource: "nodes"}
	secrets         = schema.GroupResource{Resource: "secrets"}
	serviceAccounts = schema.GroupResource{Resource: "serviceaccounts"}
)
