// Package snapshots has the command `coxswain snapshot`: it asks a running server to save all its objects under a name,
// and to put them back.
package snapshots

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/apiserver/snapshots"
	"github.com/coxswain-dev/coxswain/cmd/coxswain/datadir"
	"github.com/coxswain-dev/coxswain/cmd/coxswain/kubeconfig"
)

// options name the server.
type options struct{ kubeconfig, dataDir string }

// New returns the command.
func New() *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use:   "snapshot",
		Short: "Save the objects of a running server under a name, and put them back within a second",
		Long: `Save all objects of a running server (up, test-server, or apiserver without --etcd-servers) under a
name, and put them back while it runs. Watches continue, and resourceVersions grow as usual: to clients it
looks as if one write had undone every change since. It takes every right in the cluster, as
admin.kubeconfig has. Pods' containers are not part of a snapshot.

  coxswain snapshot save prepared
  kubectl delete namespace shop
  coxswain snapshot reset prepared

The files are in the folder snapshots of the data directory; a test server keeps them in memory. For
backups, and for an external etcd, use coxswain etcd snapshot.`,
		Args: cobra.NoArgs,
	}
	cmd.PersistentFlags().StringVar(&o.kubeconfig, "kubeconfig", "",
		"kubeconfig of the server; empty uses KUBECONFIG or, without that, admin.kubeconfig in --data-dir")
	cmd.PersistentFlags().StringVar(&o.dataDir, "data-dir", "./.coxswain", "data directory of the server")
	cmd.AddCommand(
		o.verb("save NAME", "Save all objects, in place of an earlier snapshot of that name",
			http.MethodPut, "", "saved"),
		o.verb("load NAME", "Put the objects of a snapshot, also of another cluster's, in place of the present",
			http.MethodPost, "/load", "loaded"),
		o.verb("reset NAME", "Put the objects of a snapshot of this cluster back: earlier credentials work again",
			http.MethodPost, "/reset", "reset to"),
		o.verb("delete NAME", "Delete a snapshot", http.MethodDelete, "", "deleted"), o.list())
	return cmd
}

// verb returns a command for one snapshot, which does one request.
func (o *options) verb(use, short, method, action, done string) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			began := time.Now()
			info := &snapshots.Info{}
			path := snapshots.Path + "/" + url.PathEscape(args[0]) + action
			if err := o.send(cmd.Context(), method, path, info); err != nil {
				return err
			}
			text := fmt.Sprintf("%s snapshot %s", done, info.Name)
			if method != http.MethodDelete {
				text += fmt.Sprintf(": %d objects, revision %d (it took %s)", info.Objects, info.Revision,
					time.Since(began).Round(time.Millisecond))
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), text)
			return err
		},
	}
}

func (o *options) list() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the snapshots", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var answer struct{ Snapshots []snapshots.Info }
			if err := o.send(cmd.Context(), http.MethodGet, snapshots.Path, &answer); err != nil {
				return err
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 3, ' ', 0)
			fmt.Fprintln(w, "NAME\tOBJECTS\tBYTES\tREVISION\tVERSION\tAGE")
			for _, s := range answer.Snapshots {
				fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\t%s\n", s.Name, s.Objects, s.Bytes, s.Revision, s.Version,
					duration.HumanDuration(time.Since(s.Time)))
			}
			return w.Flush()
		},
	}
}

// send sends a request without a body and decodes the answer.
func (o *options) send(ctx context.Context, method, path string, answer any) error {
	config, err := o.config()
	if err != nil {
		return err
	}
	config.NegotiatedSerializer, config.APIPath = scheme.Codecs.WithoutConversion(), "/"
	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return err
	}
	result := client.Verb(method).RequestURI(path).Do(ctx)
	switch err := result.Error(); { // unlike the error of Raw it has the server's message
	case apierrors.IsNotFound(err) && apierrors.ReasonForError(err) != "" && isForeign(err):
		return fmt.Errorf("%s does not serve snapshots: it is not a coxswain server, or an older one", config.Host)
	case err != nil:
		return err
	}
	content, err := result.Raw()
	if err != nil {
		return err
	}
	return json.Unmarshal(content, answer)
}

// isForeign reports whether an error is about the path and not about a snapshot.
func isForeign(err error) bool {
	status, ok := err.(apierrors.APIStatus)
	return ok && status.Status().Message == "the server could not find the requested resource"
}

// config returns the configuration of a client.
func (o *options) config() (*rest.Config, error) {
	file := o.kubeconfig
	if file == "" && os.Getenv("KUBECONFIG") == "" {
		file = filepath.Join(o.dataDir, "admin"+datadir.KubeconfigSuffix)
	}
	files, err := kubeconfig.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	return files.Config("")
}
