// Command informer runs one client-go informer on the ConfigMaps of a namespace until it
// sees one named "end", and prints what its store holds then: a line of name and
// resourceVersion each. It is a module of its own, built against several releases of client-go.
package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(kubeconfig, namespace string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
	informer := factory.Core().V1().ConfigMaps().Informer()
	end := make(chan struct{})
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) {
		if obj.(*corev1.ConfigMap).Name == "end" {
			close(end)
		}
	}})
	if err != nil {
		return err
	}
	stop := make(chan struct{})
	defer close(stop)
	factory.Start(stop)
	if !cache.WaitForCacheSync(stop, informer.HasSynced) {
		return fmt.Errorf("the informer did not sync")
	}
	fmt.Println("synced")
	select {
	case <-end:
	case <-time.After(time.Minute):
		return fmt.Errorf("the end was not seen")
	}
	var lines []string
	for _, obj := range informer.GetStore().List() {
		cm := obj.(*corev1.ConfigMap)
		lines = append(lines, cm.Name+" "+cm.ResourceVersion)
	}
	slices.Sort(lines)
	fmt.Println(strings.Join(lines, "\n"))
	return nil
}
