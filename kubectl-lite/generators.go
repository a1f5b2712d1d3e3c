package kubectllite

import (
	"errors"
	"strings"

	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
)

// coreResource and its like name where generated objects are posted to.
func coreResource(resource string) schema.GroupVersionResource {
	return corev1.SchemeGroupVersion.WithResource(resource)
}

// generators are the kinds that create makes from flags.
var generators = []generator{
	{
		use: "namespace NAME", aliases: []string{"ns"}, short: "Create a namespace with the specified name",
		resource: coreResource("namespaces"), clusterScoped: true,
		flags: func(*pflag.FlagSet, *session) build {
			return func(name string, _ []string) (runtime.Object, error) {
				return &corev1.Namespace{
					TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
					ObjectMeta: metav1.ObjectMeta{Name: name},
				}, nil
			}
		},
	},
	{
		use: "serviceaccount NAME", aliases: []string{"sa"}, short: "Create a service account with the specified name",
		resource: coreResource("serviceaccounts"), failure: "failed to create serviceaccount",
		flags: func(*pflag.FlagSet, *session) build {
			return func(name string, _ []string) (runtime.Object, error) {
				return &corev1.ServiceAccount{
					TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
					ObjectMeta: metav1.ObjectMeta{Name: name},
				}, nil
			}
		},
	},
	{
		use: "configmap NAME [--from-file=[key=]source] [--from-literal=key1=value1]", aliases: []string{"cm"},
		short:    "Create a config map from a local file, directory or literal value",
		resource: coreResource("configmaps"), failure: "failed to create configmap", flags: configMapFlags,
	},
	{
		use: "deployment NAME --image=image -- [COMMAND] [args...]", aliases: []string{"deploy"},
		short:    "Create a deployment with the specified name",
		resource: appsv1.SchemeGroupVersion.WithResource("deployments"), failure: "failed to create deployment",
		flags: deploymentFlags, required: []string{"image"},
	},
}

func deploymentFlags(flags *pflag.FlagSet, _ *session) build {
	images := flags.StringSlice("image", nil, "Image names to run. A deployment can have multiple images set for multi-container pod.")
	port := flags.Int32("port", -1, "The containerPort that this deployment exposes.")
	replicas := flags.Int32P("replicas", "r", 1, "Number of replicas to create. Default is 1.")
	return func(name string, command []string) (runtime.Object, error) {
		if len(*images) > 1 && len(command) > 0 {
			return nil, errors.New("cannot specify multiple --image options and command")
		}
		labels := map[string]string{"app": name}
		var containers []corev1.Container
		for _, image := range *images {
			containers = append(containers, corev1.Container{Name: containerName(image), Image: image, Command: command})
		}
		if *port >= 0 {
			containers[0].Ports = []corev1.ContainerPort{{ContainerPort: *port}}
		}
		return &appsv1.Deployment{
			TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
			Spec: appsv1.DeploymentSpec{
				Replicas: replicas,
				Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: labels},
					Spec:       corev1.PodSpec{Containers: containers},
				},
			},
		}, nil
	}
}

// containerName is the image's last path element without tag and digest; where that is no DNS label it is made one, and
// unique.
func containerName(image string) string {
	name := image[strings.LastIndex(image, "/")+1:]
	name, _, _ = strings.Cut(name, ":")
	name, _, _ = strings.Cut(name, "@")
	if strings.ContainsAny(name, "_.") {
		name = strings.NewReplacer("_", "-", ".", "-").Replace(name) + "-" + utilrand.String(5)
	}
	return name
}
