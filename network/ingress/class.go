package ingress

import (
	"context"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	networkinginformers "k8s.io/client-go/informers/networking/v1"
	"k8s.io/client-go/kubernetes"
)

// annotationClass is the legacy annotation for the class of an Ingress.
const annotationClass = "kubernetes.io/ingress.class"

// classes decide which Ingresses are served.
type classes struct {
	informer       networkinginformers.IngressClassInformer
	name           string // served even if no IngressClass has this name
	controllerName string
}

// serves reports whether this controller serves an Ingress. The annotation takes precedence over the field, and an
// Ingress with neither belongs to the default class.
func (c *classes) serves(ingress *networkingv1.Ingress) bool {
	if name, ok := ingress.Annotations[annotationClass]; ok && name != "" {
		return c.ours(name)
	}
	if name := ingress.Spec.IngressClassName; name != nil {
		return c.ours(*name)
	}
	class := c.defaultClass()
	return class != nil && class.Spec.Controller == c.controllerName
}

func (c *classes) ours(name string) bool {
	class, err := c.informer.Lister().Get(name)
	if err != nil {
		return name == c.name
	}
	return class.Spec.Controller == c.controllerName
}

// defaultClass returns the class of Ingresses without one. If several classes are default ones, it is the newest, as in
// admission.
func (c *classes) defaultClass() *networkingv1.IngressClass {
	list, _ := c.informer.Lister().List(labels.Everything()) // from the cache
	var newest *networkingv1.IngressClass
	for _, class := range list {
		if class.Annotations[networkingv1.AnnotationIsDefaultIngressClass] == "true" &&
			(newest == nil || newer(class, newest)) {
			newest = class
		}
	}
	return newest
}

func newer(a, b *networkingv1.IngressClass) bool {
	if a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.Name < b.Name
	}
	return b.CreationTimestamp.Before(&a.CreationTimestamp)
}

// createClass creates the IngressClass, unless it exists.
func createClass(ctx context.Context, client kubernetes.Interface, o Options) error {
	_, err := client.NetworkingV1().IngressClasses().Create(ctx, &networkingv1.IngressClass{
		ObjectMeta: metav1.ObjectMeta{Name: o.ClassName},
		Spec:       networkingv1.IngressClassSpec{Controller: o.ControllerName},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
