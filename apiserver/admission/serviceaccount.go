package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
)

const (
	defaultAccount = "default"
	// tokenMountPath is the path at which clients in a pod look for their token.
	tokenMountPath     = "/var/run/secrets/kubernetes.io/serviceaccount"
	tokenVolumePrefix  = "kube-api-access-"
	rootCAConfigMap    = "kube-root-ca.crt"
	mountableSecretsOn = "kubernetes.io/enforce-mountable-secrets"
)

// serviceAccount gives pods their service account, and its token.
// https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/
type serviceAccount struct{ cluster Cluster }

func newServiceAccount(env *Env) (Plugin, error) { return &serviceAccount{env.Cluster}, nil }

func (p *serviceAccount) Mutate(ctx context.Context, a *Attributes) error {
	pod := a.Object.(*corev1.Pod)
	if a.Operation != Create || isMirror(pod) {
		return nil
	}
	if pod.Spec.ServiceAccountName == "" {
		pod.Spec.ServiceAccountName = defaultAccount
		pod.Spec.DeprecatedServiceAccount = defaultAccount
	}
	account, err := p.account(ctx, a, pod.Spec.ServiceAccountName)
	if err != nil {
		return err
	}
	if automounts(account, pod) {
		mountToken(pod)
	}
	if len(pod.Spec.ImagePullSecrets) == 0 {
		pod.Spec.ImagePullSecrets = slices.Clone(account.ImagePullSecrets)
	}
	return nil
}

// account returns the account. It waits for a namespace's default account, which its controller may be about to
// create.
func (p *serviceAccount) account(ctx context.Context, a *Attributes, name string) (*corev1.ServiceAccount, error) {
	read := p.cluster.Get
	if name == defaultAccount {
		read = p.cluster.Await
	}
	account, err := typed[*corev1.ServiceAccount](read(ctx, serviceAccounts, a.Namespace, name))
	if errors.Is(err, ErrNotFound) {
		err = apierrors.NewNotFound(core("serviceaccount"), name)
	}
	if err != nil {
		return nil, a.Forbid(fmt.Errorf("error looking up service account %s/%s: %w", a.Namespace, name, err))
	}
	return account, nil
}

func isMirror(pod *corev1.Pod) bool {
	_, is := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return is
}

func automounts(account *corev1.ServiceAccount, pod *corev1.Pod) bool {
	if pod.Spec.AutomountServiceAccountToken != nil {
		return *pod.Spec.AutomountServiceAccountToken
	}
	return ptr.Deref(account.AutomountServiceAccountToken, true)
}

// mountToken mounts the volume with the token, the cluster's CA and the namespace in every container that has no
// mount at its path.
func mountToken(pod *corev1.Pod) {
	name, present := tokenVolumePrefix+rand.String(5), false
	for _, v := range pod.Spec.Volumes {
		if len(v.Name) > len(tokenVolumePrefix) && v.Name[:len(tokenVolumePrefix)] == tokenVolumePrefix {
			name, present = v.Name, true
			break
		}
	}
	needed := false
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			c := &containers[i]
			if slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
				return m.MountPath == tokenMountPath
			}) {
				continue
			}
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, ReadOnly: true,
				MountPath: tokenMountPath})
			needed = true
		}
	}
	if needed && !present {
		pod.Spec.Volumes = append(pod.Spec.Volumes, tokenVolume(name))
	}
}

func tokenVolume(name string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		DefaultMode: ptr.To(corev1.ProjectedVolumeSourceDefaultMode),
		Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token",
				ExpirationSeconds: ptr.To[int64](authn.PodTokenSeconds)}},
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: rootCAConfigMap},
				Items:                []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
			}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{
				Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1",
					FieldPath: "metadata.namespace"},
			}}}},
		},
	}}}
}

// Validate rejects mirror pods that need a service account. It limits other pods to the secrets that their account
// names, if the account demands that.
func (p *serviceAccount) Validate(ctx context.Context, a *Attributes) error {
	pod := a.Object.(*corev1.Pod)
	if a.Operation == Create && isMirror(pod) {
		return checkMirror(a, pod)
	}
	account, err := p.account(ctx, a, pod.Spec.ServiceAccountName)
	if err != nil {
		return err
	}
	if on, _ := strconv.ParseBool(account.Annotations[mountableSecretsOn]); !on {
		return nil
	}
	if err := checkSecrets(account, pod, a.Operation == Create); err != nil {
		return a.Forbid(err)
	}
	return nil
}

func checkMirror(a *Attributes, pod *corev1.Pod) error {
	if pod.Spec.ServiceAccountName != "" {
		return a.Forbid(errors.New("a mirror pod may not reference service accounts"))
	}
	for use := range podReferences(pod) {
		if use.kind == "secrets" {
			return a.Forbid(errors.New("a mirror pod may not reference secrets"))
		}
	}
	for _, v := range pod.Spec.Volumes {
		if v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool {
			return s.ServiceAccountToken != nil
		}) {
			return a.Forbid(errors.New("a mirror pod may not use service account token projections"))
		}
	}
	return nil
}

// checkSecrets rejects secrets that the account does not name. For an update, whole is false, and only ephemeral
// containers are checked.
func checkSecrets(account *corev1.ServiceAccount, pod *corev1.Pod, whole bool) error {
	mountable := func(name string) bool {
		return slices.ContainsFunc(account.Secrets, func(r corev1.ObjectReference) bool { return r.Name == name })
	}
	for use := range podReferences(pod) {
		if use.kind != "secrets" || use.pull || !whole && !use.ephemeral || mountable(use.name) {
			continue
		}
		return fmt.Errorf("%s is not allowed because service account %s does not reference that secret",
			use.where, account.Name)
	}
	if !whole {
		return nil
	}
	for i, pull := range pod.Spec.ImagePullSecrets {
		if !slices.Contains(account.ImagePullSecrets, pull) {
			return fmt.Errorf("imagePullSecrets[%d].name=%q is not allowed because service account %s does not "+
				"reference that imagePullSecret", i, pull.Name, account.Name)
		}
	}
	return nil
}
