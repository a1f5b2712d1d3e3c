// Adapter serves external metrics that never change, by the library and the metrics of custom-metrics-apiserver's test
// adapter. That one also listens on port 8080, which a test cannot have for itself.
package main

import (
	"context"
	"os"

	"k8s.io/klog/v2"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/cmd"
	"sigs.k8s.io/custom-metrics-apiserver/test-adapter/provider"
)

func main() {
	adapter := &cmd.AdapterBase{Name: "adapter"}
	if err := adapter.Flags().Parse(os.Args); err != nil {
		klog.Fatal(err)
	}
	client, err := adapter.DynamicClient()
	if err != nil {
		klog.Fatal(err)
	}
	mapper, err := adapter.RESTMapper()
	if err != nil {
		klog.Fatal(err)
	}
	metrics, _ := provider.NewFakeProvider(client, mapper)
	adapter.WithExternalMetrics(metrics)
	if err := adapter.Run(context.Background()); err != nil {
		klog.Fatal(err)
	}
}
