package node_test

import (
	"context"
	"log"
	"os"
	"os/signal"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/coxswain-dev/coxswain/node"
)

// A hundred simulated nodes, until interrupted.
func ExampleRun() {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := node.Run(ctx, config, node.Options{Count: 100, Prefix: "sim-"}); err != nil {
		log.Fatal(err)
	}
}
