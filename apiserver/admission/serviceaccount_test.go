package admission

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

func localRef(name string) *corev1.LocalObjectReference {
	return &corev1.LocalObjectReference{Name: name}
}

// secretVolumes are the sources of volumes that need the secret s.
var secretVolumes = map[string]corev1.VolumeSource{
	"secret": {Secret: &corev1.SecretVolumeSource{SecretName: "s"}},
	"projected": {Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{Secret: &corev1.SecretProjection{LocalObjectReference: *localRef("s")}}}}},
	"azureFile": {AzureFile: &corev1.AzureFileVolumeSource{SecretName: "s"}},
	"cephfs":    {CephFS: &corev1.CephFSVolumeSource{SecretRef: localRef("s")}},
	"cinder":    {Cinder: &corev1.CinderVolumeSource{SecretRef: localRef("s")}},
	"csi":       {CSI: &corev1.CSIVolumeSource{NodePublishSecretRef: localRef("s")}},
	"flex":      {FlexVolume: &corev1.FlexVolumeSource{SecretRef: localRef("s")}},
	"iscsi":     {ISCSI: &corev1.ISCSIVolumeSource{SecretRef: localRef("s")}},
	"rbd":       {RBD: &corev1.RBDVolumeSource{SecretRef: localRef("s")}},
	"scaleIO":   {ScaleIO: &corev1.ScaleIOVolumeSource{SecretRef: localRef("s")}},
	"storageos": {StorageOS: &corev1.StorageOSVolumeSource{SecretRef: localRef("s")}},
}

func secretEnv() []corev1.EnvVar {
	return []corev1.EnvVar{{Name: "plain"}, {Name: "E", ValueFrom: &corev1.EnvVarSource{
		SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: *localRef("s")}}}}
}

func secretEnvFrom() []corev1.EnvFromSource {
	return []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: *localRef("s")}}}
}

func TestServiceAccount_MustExist(t *testing.T) {
	t.Parallel()
	pod := func(account string) *Attributes {
		return creates(&corev1.Pod{ObjectMeta: meta("p"), Spec: corev1.PodSpec{ServiceAccountName: account}})
	}
	const words = `error looking up service account default/`
	newWorld().decides(t, "ServiceAccount", "", []decision{
		{name: "no default account", write: pod(""),
			words: words + `default: serviceaccount "default" not found`},
		{name: "no such account", write: pod("robot"),
			words: words + `robot: serviceaccount "robot" not found`},
	})
	newWorld(&corev1.ServiceAccount{ObjectMeta: meta("default")}).decides(t, "ServiceAccount", "", []decision{
		{name: "the default account", write: pod("")},
		{name: "another account", write: pod("robot"), words: words + "robot"},
	})
}

func TestServiceAccount_SetsSecretsAndToken(t *testing.T) {
	t.Parallel()
	account := &corev1.ServiceAccount{ObjectMeta: meta("default"),
		ImagePullSecrets: []corev1.LocalObjectReference{*localRef("pull")}}
	silent := made(account, func(a *corev1.ServiceAccount) { a.AutomountServiceAccountToken = ptr.To(false) })
	admitted := func(account *corev1.ServiceAccount, change func(*corev1.PodSpec)) corev1.PodSpec {
		pod := &corev1.Pod{ObjectMeta: meta("p")}
		pod.Spec.Containers = []corev1.Container{{Name: "c"}}
		change(&pod.Spec)
		require.NoError(t, newWorld(account).admit(t, "ServiceAccount", "", creates(pod)))
		return pod.Spec
	}
	spec := admitted(account, func(*corev1.PodSpec) {})
	require.Equal(t, "default", spec.ServiceAccountName)
	require.Equal(t, "default", spec.DeprecatedServiceAccount)
	require.Equal(t, account.ImagePullSecrets, spec.ImagePullSecrets)
	require.Len(t, spec.Volumes, 1)
	require.Equal(t, []corev1.VolumeMount{{Name: spec.Volumes[0].Name, ReadOnly: true,
		MountPath: tokenMountPath}},
		spec.Containers[0].VolumeMounts)
	require.EqualValues(t, 3607, *spec.Volumes[0].Projected.Sources[0].ServiceAccountToken.ExpirationSeconds)

	own := []corev1.LocalObjectReference{*localRef("own")}
	require.Equal(t, own, admitted(account,
		func(s *corev1.PodSpec) { s.ImagePullSecrets = own }).ImagePullSecrets)
	for name, spec := range map[string]corev1.PodSpec{
		"the account has none": admitted(silent, func(*corev1.PodSpec) {}),
		"the pod wants none": admitted(account, func(s *corev1.PodSpec) {
			s.AutomountServiceAccountToken = ptr.To(false)
		}),
		"every container mounts its own": admitted(account, func(s *corev1.PodSpec) {
			s.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "own", MountPath: tokenMountPath}}
		}),
	} {
		require.Empty(t, spec.Volumes, name)
	}
	require.Len(t, admitted(silent, func(s *corev1.PodSpec) {
		s.AutomountServiceAccountToken = ptr.To(true)
	}).Volumes, 1, "the pod's own wish counts")
}

func TestServiceAccount_MirrorPodsHaveNone(t *testing.T) {
	t.Parallel()
	decisions := []decision{
		{name: "no reference", write: creates(mirrorPod())},
		{name: "an account", words: "a mirror pod may not reference service accounts",
			write: creates(mirrorPod(func(p *corev1.Pod) { p.Spec.ServiceAccountName = "robot" }))},
		{name: "a token", words: "a mirror pod may not use service account token projections",
			write: creates(mounting(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
				Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{}}}}}))},
		{name: "a config map",
			write: creates(mounting(corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}))},
	}
	for kind, source := range secretVolumes {
		decisions = append(decisions, decision{name: "a secret in a volume of " + kind,
			write: creates(mounting(source)),
			words: "a mirror pod may not reference secrets"})
	}
	newWorld().decides(t, "ServiceAccount", "", decisions)
}

func TestServiceAccount_MayRestrictSecrets(t *testing.T) {
	t.Parallel()
	account := func(enforced string, secrets ...string) *world {
		a := &corev1.ServiceAccount{ObjectMeta: meta("robot")}
		a.Annotations = map[string]string{mountableSecretsOn: enforced}
		a.ImagePullSecrets = []corev1.LocalObjectReference{*localRef("pull")}
		for _, name := range secrets {
			a.Secrets = append(a.Secrets, corev1.ObjectReference{Name: name})
		}
		return newWorld(a)
	}
	const words = `"s" is not allowed because service account robot does not reference that secret`
	pod := func(change func(*corev1.PodSpec)) *corev1.Pod {
		p := podOn("", "p")
		change(&p.Spec)
		return p
	}
	pods := map[string]*corev1.Pod{
		"env":      pod(func(s *corev1.PodSpec) { s.Containers = []corev1.Container{{Env: secretEnv()}} }),
		"env from": pod(func(s *corev1.PodSpec) { s.Containers = []corev1.Container{{EnvFrom: secretEnvFrom()}} }),
		"env of an init container": pod(func(s *corev1.PodSpec) {
			s.InitContainers = []corev1.Container{{Env: secretEnv()}}
		}),
		"env from of an init container": pod(func(s *corev1.PodSpec) {
			s.InitContainers = []corev1.Container{{EnvFrom: secretEnvFrom()}}
		}),
	}
	for kind, source := range secretVolumes {
		pods["volume of "+kind] = pod(func(s *corev1.PodSpec) { s.Volumes = []corev1.Volume{{VolumeSource: source}} })
	}
	for name, p := range pods {
		account("true").decides(t, "ServiceAccount", "", []decision{{name: name, write: creates(p),
			words: words}})
		account("true", "s").decides(t, "ServiceAccount", "", []decision{{name: name + " of its account",
			write: creates(p)}})
		account("false").decides(t, "ServiceAccount", "", []decision{{name: name + " unenforced",
			write: creates(p)}})
	}
	pull := func(name string) *Attributes {
		return creates(pod(func(s *corev1.PodSpec) {
			s.ImagePullSecrets = []corev1.LocalObjectReference{*localRef(name)}
		}))
	}
	debugged := func(c corev1.EphemeralContainerCommon) *Attributes {
		p := pod(func(s *corev1.PodSpec) {
			s.Containers = []corev1.Container{{Env: secretEnv()}} // admitted before
			s.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: c}}
			s.ImagePullSecrets = []corev1.LocalObjectReference{*localRef("s")}
		})
		return subresource(updates(p, p), "ephemeralcontainers")
	}
	account("true").decides(t, "ServiceAccount", "", []decision{
		{name: "a pull secret of its account", write: pull("pull")},
		{name: "another pull secret", write: pull("s"), words: `imagePullSecrets[0].name="s" is not allowed`},
		{name: "an ephemeral container", write: debugged(corev1.EphemeralContainerCommon{})},
		{name: "env of an ephemeral container", words: words,
			write: debugged(corev1.EphemeralContainerCommon{Env: secretEnv()})},
		{name: "env from of an ephemeral container", words: words,
			write: debugged(corev1.EphemeralContainerCommon{EnvFrom: secretEnvFrom()})},
	})
}
