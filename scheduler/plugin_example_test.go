package scheduler_test

import (
	"context"
	"fmt"

	"k8s.io/client-go/rest"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/coxswain-dev/coxswain/scheduler"
	"github.com/coxswain-dev/coxswain/scheduler/config"
	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// quietNodes keeps pods off nodes that are noisier than the profile allows. It is a complete plugin.
type quietNodes struct {
	Allow string `json:"allow"`
}

func (quietNodes) Name() string { return "QuietNodes" }

func (p quietNodes) Filter(_ *framework.CycleState, _ *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	if noise := node.Node.Labels["noise"]; noise != "" && noise != p.Allow {
		return framework.NewStatus(p.Name(), framework.UnschedulableAndUnresolvable, "node(s) were too loud")
	}
	return nil
}

// A scheduler with a plugin of its own.
func Example_plugin() {
	registry := framework.Registry{"QuietNodes": func(args framework.Args,
		_ framework.Handle) (framework.Plugin, error) {
		var p quietNodes
		err := args.Decode(&p)
		return p, err
	}}
	c := config.Default()
	multiPoint := &c.Profiles[0].Plugins.MultiPoint
	multiPoint.Enabled = append(multiPoint.Enabled, configv1.Plugin{Name: "QuietNodes"})
	c.Profiles[0].PluginConfig = []configv1.PluginConfig{{Name: "QuietNodes"}}
	c.Profiles[0].PluginConfig[0].Args.Raw = []byte(`{"allowed": "low"}`)

	err := scheduler.Run(context.Background(), &rest.Config{Host: "https://127.0.0.1:6443"},
		scheduler.Options{Config: c, Registry: registry})
	fmt.Println(err)
	// Output: scheduler: plugin QuietNodes: profiles[0].pluginConfig[0].args: unknown field "allowed"
}
