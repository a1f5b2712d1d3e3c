package scheduler_test

import (
	"context"
	"log"
	"os"
	"os/signal"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/coxswain-dev/coxswain/scheduler"
)

// A scheduler with leader election, until interrupted.
func ExampleRun() {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := scheduler.Run(ctx, config, scheduler.Options{LeaderElect: true}); err != nil {
		log.Fatal(err)
	}
}
