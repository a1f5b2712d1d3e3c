package kubectllite

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
)

func newCertificate(s *session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "certificate SUBCOMMAND", Short: "Modify certificate resources", Args: unknownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newVerdict(s, approve), newVerdict(s, deny))
	return cmd
}

// verdict is what may be said of a request for a certificate. The other one must not have been said before.
type verdict struct {
	verb, done, short        string
	condition, contradicts   certificatesv1.RequestConditionType
	reason, message, already string
}

var (
	approve = verdict{
		verb: "approve", done: "approved", short: "Approve a certificate signing request", already: "Update the CSR even if it is already approved.",
		condition: certificatesv1.CertificateApproved, contradicts: certificatesv1.CertificateDenied,
		reason: "KubectlApprove", message: "This CSR was approved by kubectl certificate approve.",
	}
	deny = verdict{
		verb: "deny", done: "denied", short: "Deny a certificate signing request", already: "Update the CSR even if it is already denied.",
		condition: certificatesv1.CertificateDenied, contradicts: certificatesv1.CertificateApproved,
		reason: "KubectlDeny", message: "This CSR was denied by kubectl certificate deny.",
	}
)

type verdictOptions struct {
	*session
	writing
	verdict
	files resource.FilenameOptions
	force bool
}

func newVerdict(s *session, v verdict) *cobra.Command {
	o := &verdictOptions{session: s, verdict: v}
	cmd := &cobra.Command{
		Use: v.verb + " (-f FILENAME | NAME)", Short: v.short, DisableFlagsInUseLine: true,
		Long: v.short + ".\n\nWhat is signed can act in the name that the request has, with all the rights of its groups: read it before you approve.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && cmdutil.IsFilenameSliceEmpty(o.files.Filenames, o.files.Kustomize) {
				return errors.New("one or more CSRs must be specified as <name> or -f <filename>")
			}
			return o.run(contextOf(cmd), args)
		},
	}
	o.addPrintFlags(cmd)
	cmd.Flags().BoolVar(&o.force, "force", false, v.already)
	cmdutil.AddFilenameOptionFlags(cmd, &o.files, "identifying the resource to update")
	return cmd
}

func (o *verdictOptions) run(ctx context.Context, names []string) error {
	client, err := o.KubernetesClientSet()
	if err != nil {
		return err
	}
	found := 0
	err = o.withFiles(o.NewBuilder().Unstructured().ContinueOnError(), false, &o.files).
		ResourceNames("certificatesigningrequests", names...).RequireObject(true).Flatten().Latest().Do().
		Visit(func(info *resource.Info, err error) error {
			if err != nil {
				return err
			}
			if err := o.pronounce(ctx, client, info.Name); err != nil {
				return err
			}
			found++
			return o.show(o.session, info.Object, o.done)
		})
	if err == nil && found == 0 {
		fmt.Fprintln(o.Out, "No resources found")
	}
	return err
}

// pronounce writes the verdict, unless it is there already.
func (o *verdictOptions) pronounce(ctx context.Context, client kubernetes.Interface, name string) error {
	requests := client.CertificatesV1().CertificateSigningRequests()
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		request, err := requests.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		said := false
		for _, c := range request.Status.Conditions {
			if c.Type == o.contradicts {
				return fmt.Errorf("certificate signing request %q is already %s", name, c.Type)
			}
			said = said || c.Type == o.condition
		}
		if said && !o.force {
			return nil
		}
		if !said {
			request.Status.Conditions = append(request.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
				Type: o.condition, Status: corev1.ConditionTrue, Reason: o.reason, Message: o.message, LastUpdateTime: metav1.Now(),
			})
		}
		_, err = requests.UpdateApproval(ctx, name, request, metav1.UpdateOptions{})
		return err
	})
}
