package kubectllite

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/util/retry"
	"k8s.io/component-helpers/auth/rbac/reconciliation"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"github.com/coxswain-dev/coxswain/kubectl-lite/session"
)

type reconcileOptions struct {
	*session.Session
	writing
	files                             resource.FilenameOptions
	removePermissions, removeSubjects bool
}

func newReconcile(s *session.Session) *cobra.Command {
	o := &reconcileOptions{Session: s}
	cmd := &cobra.Command{
		Use:   "reconcile -f FILENAME",
		Short: "Reconciles rules for RBAC role, role binding, cluster role, and cluster role binding objects",
		Long: `Adds the rules and subjects of the documents to roles and bindings. With --remove-extra-permissions and
--remove-extra-subjects it also removes all others. It creates missing objects and their namespaces, and ignores documents
of other kinds.`,
		Example:               `  kubectl-lite auth reconcile -f roles.yaml`,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.files.RequireFilenameOrKustomize(); err != nil {
				return err
			}
			if len(args) > 0 {
				return errors.New("no arguments are allowed")
			}
			if err := o.complete(cmd); err != nil {
				return err
			}
			if o.dryRun == cmdutil.DryRunServer {
				return fmt.Errorf("--dry-run=server for command %s is not supported yet", cmd.Name())
			}
			return o.run()
		},
	}
	o.addPrintFlags(cmd)
	cmdutil.AddDryRunFlag(cmd)
	cmdutil.AddFilenameOptionFlags(cmd, &o.files, "identifying the resource to reconcile.")
	cmd.Flags().BoolVar(&o.removePermissions, "remove-extra-permissions", false,
		"If true, removes extra permissions added to roles")
	cmd.Flags().BoolVar(&o.removeSubjects, "remove-extra-subjects", false,
		"If true, removes extra subjects added to rolebindings")
	return cmd
}

func (o *reconcileOptions) run() error {
	namespace, explicit, err := o.Namespace()
	if err != nil {
		return err
	}
	return o.WithFiles(o.Typed().ContinueOnError().NamespaceParam(namespace).DefaultNamespace(), explicit, &o.files).
		Flatten().Local().Do().
		Visit(func(info *resource.Info, err error) error {
			if err != nil {
				return err
			}
			return o.reconcile(info.Object)
		})
}

// reconcile changes one role or binding to match its document. If another client writes it at the same time, it is read
// again.
func (o *reconcileOptions) reconcile(obj runtime.Object) error {
	client, err := o.KubernetesClientSet()
	if err != nil {
		return err
	}
	namespaces, access := client.CoreV1().Namespaces(), client.RbacV1()
	roles := reconciliation.ReconcileRoleOptions{Confirm: !o.onlyPretend(), RemoveExtraPermissions: o.removePermissions}
	bindings := reconciliation.ReconcileRoleBindingOptions{Confirm: !o.onlyPretend(),
		RemoveExtraSubjects: o.removeSubjects}
	switch obj := obj.(type) {
	case *rbacv1.Role:
		roles.Role, roles.Client = reconciliation.RoleRuleOwner{Role: obj},
			reconciliation.RoleModifier{NamespaceClient: namespaces, Client: access}
	case *rbacv1.ClusterRole:
		roles.Role, roles.Client = reconciliation.ClusterRoleRuleOwner{ClusterRole: obj},
			reconciliation.ClusterRoleModifier{Client: access.ClusterRoles()}
	case *rbacv1.RoleBinding:
		bindings.RoleBinding = reconciliation.RoleBindingAdapter{RoleBinding: obj}
		bindings.Client = reconciliation.RoleBindingClientAdapter{NamespaceClient: namespaces, Client: access}
	case *rbacv1.ClusterRoleBinding:
		bindings.RoleBinding = reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: obj}
		bindings.Client = reconciliation.ClusterRoleBindingClientAdapter{Client: access.ClusterRoleBindings()}
	default:
		if kind := obj.GetObjectKind().GroupVersionKind(); kind.Group == rbacv1.GroupName {
			return fmt.Errorf("only rbac.authorization.k8s.io/v1 is supported: not %T", obj)
		}
		return nil
	}
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if roles.Role != nil {
			return o.reconcileRole(&roles)
		}
		return o.reconcileBinding(&bindings)
	})
}

func (o *reconcileOptions) reconcileRole(options *reconciliation.ReconcileRoleOptions) error {
	result, err := options.Run()
	if err != nil {
		return err
	}
	if err := o.show(o.Session, result.Role.GetObject(), "reconciled"); err != nil ||
		result.Operation == reconciliation.ReconcileNone {
		return err
	}
	o.report(result.Operation, result.Protected)
	reportEach(o.Session, "missing rules added", result.MissingRules)
	if o.removePermissions {
		reportEach(o.Session, "extra rules removed", result.ExtraRules)
	}
	return nil
}

func (o *reconcileOptions) reconcileBinding(options *reconciliation.ReconcileRoleBindingOptions) error {
	result, err := options.Run()
	if err != nil {
		return err
	}
	if err := o.show(o.Session, result.RoleBinding.GetObject(), "reconciled"); err != nil ||
		result.Operation == reconciliation.ReconcileNone {
		return err
	}
	o.report(result.Operation, result.Protected)
	reportEach(o.Session, "missing subjects added", result.MissingSubjects)
	if o.removeSubjects {
		reportEach(o.Session, "extra subjects removed", result.ExtraSubjects)
	}
	return nil
}

// report prints why the object was changed.
func (o *reconcileOptions) report(operation reconciliation.ReconcileOperation, protected bool) {
	caveat := ""
	if protected {
		caveat = ", but object opted out (rbac.authorization.kubernetes.io/autoupdate: false)"
	}
	fmt.Fprintf(o.ErrOut, "\treconciliation required %s%s\n", operation, caveat)
}

// reportEach prints a list under a heading, if it is not empty.
func reportEach[T any](s *session.Session, heading string, all []T) {
	if len(all) == 0 {
		return
	}
	fmt.Fprintf(s.ErrOut, "\t%s:\n", heading)
	for _, one := range all {
		fmt.Fprintf(s.ErrOut, "\t\t%+v\n", one)
	}
}
