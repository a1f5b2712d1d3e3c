package kubeflags_test

import (
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/apiserver/admission"
	"github.com/coxswain-dev/coxswain/apiserver/kubeflags"
)

func TestCheck_ReturnsIgnoredFlags(t *testing.T) {
	t.Parallel()
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	kubeflags.Add(fs)
	require.NoError(t, fs.Parse([]string{"--allow-privileged", "--enable-garbage-collector=true", "--storage-backend=etcd3",
		"--runtime-config=api/all=true", "--feature-gates=A=true", "--feature-gates=B=false", "--apiserver-count", "1"}))
	ignored, err := kubeflags.Check(fs)
	require.NoError(t, err)
	require.Equal(t, []string{"--feature-gates=A=true,B=false", "--runtime-config=api/all=true"}, ignored,
		"the server acts as the others say anyway")
	o := admission.Options{Enable: []string{"PodResizeValidator", "AlwaysDeny", "NodeRestriction"},
		Disable: []string{"AlwaysDeny", "ServiceAccount"}}
	require.Equal(t, []string{"--enable-admission-plugins=PodResizeValidator", "--disable-admission-plugins=AlwaysDeny"},
		kubeflags.DropPlugins(&o))
	require.Equal(t, admission.Options{Enable: []string{"AlwaysDeny", "NodeRestriction"},
		Disable: []string{"ServiceAccount"}}, o)
}
