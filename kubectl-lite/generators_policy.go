package kubectllite

import (
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/spf13/pflag"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// policyGenerators make work that ends, and what bounds users and namespaces.
var policyGenerators = []generator{
	{
		use: "job NAME --image=image [--from=cronjob/name] -- [COMMAND] [args...]", short: "Create a job with the specified name",
		resource: batchv1.SchemeGroupVersion.WithResource("jobs"), failure: "failed to create job", flags: jobFlags,
	},
	{
		use: "cronjob NAME --image=image --schedule='0/5 * * * ?' -- [COMMAND] [args...]", aliases: []string{"cj"}, short: "Create a cron job with the specified name",
		resource: batchv1.SchemeGroupVersion.WithResource("cronjobs"), failure: "failed to create cronjob", flags: cronJobFlags, required: []string{"image", "schedule"},
	},
	{
		use: "quota NAME [--hard=key1=value1,key2=value2] [--scopes=Scope1,Scope2]", aliases: []string{"resourcequota"}, short: "Create a quota with the specified name",
		resource: coreResource("resourcequotas"), failure: "failed to create quota", flags: quotaFlags,
	},
	{
		use:   "rolebinding NAME --clusterrole=NAME|--role=NAME [--user=username] [--group=groupname] [--serviceaccount=namespace:serviceaccountname]",
		short: "Create a role binding for a particular role or cluster role", resource: rbacv1.SchemeGroupVersion.WithResource("rolebindings"),
		failure: "failed to create rolebinding", flags: roleBindingFlags,
	},
	{
		use:   "clusterrolebinding NAME --clusterrole=NAME [--user=username] [--group=groupname] [--serviceaccount=namespace:serviceaccountname]",
		short: "Create a cluster role binding for a particular cluster role", resource: rbacv1.SchemeGroupVersion.WithResource("clusterrolebindings"),
		clusterScoped: true, failure: "failed to create clusterrolebinding", flags: clusterRoleBindingFlags, required: []string{"clusterrole"},
	},
}

func podOf(name, image string, command []string, restart corev1.RestartPolicy) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		Containers:    []corev1.Container{{Name: name, Image: image, Command: command}},
		RestartPolicy: restart,
	}}
}

func jobFlags(flags *pflag.FlagSet, s *session) build {
	image := flags.String("image", "", "Image name to run.")
	from := flags.String("from", "", "The name of the resource to create a Job from (only CronJob is supported).")
	return func(name string, command []string) (runtime.Object, error) {
		switch {
		case (*image == "") == (*from == ""):
			return nil, errors.New("either --image or --from must be specified")
		case *from != "" && len(command) > 0:
			return nil, errors.New("cannot specify --from and command")
		case *from != "":
			return s.jobFrom(*from, name)
		}
		return &batchv1.Job{
			TypeMeta:   metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"},
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       batchv1.JobSpec{Template: podOf(name, *image, command, corev1.RestartPolicyNever)},
		}, nil
	}
}

// jobFrom is a job as the cron job would make one, now. The cron job owns it. Its deletion does not wait for the job: to ask
// for that, one needs the right to change the cron job's finalizers.
func (s *session) jobFrom(from, name string) (runtime.Object, error) {
	namespace, _, err := s.namespace()
	if err != nil {
		return nil, err
	}
	infos, err := s.typed().NamespaceParam(namespace).DefaultNamespace().ResourceTypeOrNameArgs(false, from).Flatten().Latest().Do().Infos()
	if err != nil {
		return nil, err
	}
	if len(infos) != 1 {
		return nil, errors.New("from must be an existing cronjob")
	}
	cronJob, ok := infos[0].Object.(*batchv1.CronJob)
	if !ok {
		return nil, fmt.Errorf("unknown object type %T", infos[0].Object)
	}
	template := cronJob.Spec.JobTemplate
	owner := metav1.NewControllerRef(cronJob, batchv1.SchemeGroupVersion.WithKind("CronJob"))
	owner.BlockOwnerDeletion = nil
	annotations := map[string]string{"cronjob.kubernetes.io/instantiate": "manual"}
	maps.Copy(annotations, template.Annotations)
	return &batchv1.Job{
		TypeMeta: metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"},
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: template.Labels, Annotations: annotations,
			OwnerReferences: []metav1.OwnerReference{*owner},
		},
		Spec: template.Spec,
	}, nil
}

func cronJobFlags(flags *pflag.FlagSet, _ *session) build {
	image := flags.String("image", "", "Image name to run.")
	schedule := flags.String("schedule", "", "A schedule in the Cron format the job should be run with.")
	restart := flags.String("restart", string(corev1.RestartPolicyOnFailure), "job's restart policy. supported values: OnFailure, Never")
	return func(name string, command []string) (runtime.Object, error) {
		return &batchv1.CronJob{
			TypeMeta:   metav1.TypeMeta{APIVersion: "batch/v1", Kind: "CronJob"},
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: batchv1.CronJobSpec{Schedule: *schedule, JobTemplate: batchv1.JobTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec:       batchv1.JobSpec{Template: podOf(name, *image, command, corev1.RestartPolicy(*restart))},
			}},
		}, nil
	}
}

func quotaFlags(flags *pflag.FlagSet, _ *session) build {
	hard := flags.String("hard", "", "A comma-delimited set of resource=quantity pairs that define a hard limit.")
	scopes := flags.StringSlice("scopes", nil, "A comma-delimited set of quota scopes that must all match each object tracked by the quota.")
	return func(name string, _ []string) (runtime.Object, error) {
		limits, err := parseQuantities(*hard)
		if err != nil {
			return nil, errors.New(strings.Replace(err.Error(), "invalid argument", "Invalid argument", 1)) // kubectl's words differ from those of set
		}
		quota := &corev1.ResourceQuota{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ResourceQuota"},
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.ResourceQuotaSpec{Hard: limits},
		}
		for _, scope := range *scopes {
			quota.Spec.Scopes = append(quota.Spec.Scopes, corev1.ResourceQuotaScope(scope))
		}
		return quota, nil
	}
}

// subjects are the flags that say whom a binding is for.
type subjects struct{ users, groups, accounts []string }

func (s *subjects) addFlags(flags *pflag.FlagSet) {
	flags.StringArrayVar(&s.users, "user", nil, "Usernames to bind to the role. The flag can be repeated to add multiple users.")
	flags.StringArrayVar(&s.groups, "group", nil, "Groups to bind to the role. The flag can be repeated to add multiple groups.")
	flags.StringArrayVar(&s.accounts, "serviceaccount", nil, "Service accounts to bind to the role, in the format <namespace>:<name>. The flag can be repeated to add multiple service accounts.")
}

func (s *subjects) list() ([]rbacv1.Subject, error) {
	var all []rbacv1.Subject
	for _, name := range s.users {
		all = append(all, rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: name})
	}
	for _, name := range s.groups {
		all = append(all, rbacv1.Subject{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: name})
	}
	for _, account := range s.accounts {
		namespace, name, ok := strings.Cut(account, ":")
		if !ok || namespace == "" || name == "" {
			return nil, errors.New("serviceaccount must be <namespace>:<name>")
		}
		all = append(all, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name})
	}
	return all, nil
}

func roleBindingFlags(flags *pflag.FlagSet, _ *session) build {
	clusterRole := flags.String("clusterrole", "", "ClusterRole this RoleBinding should reference")
	role := flags.String("role", "", "Role this RoleBinding should reference")
	who := &subjects{}
	who.addFlags(flags)
	return func(name string, _ []string) (runtime.Object, error) {
		if (*clusterRole == "") == (*role == "") {
			return nil, errors.New("exactly one of clusterrole or role must be specified")
		}
		to := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: *role}
		if *clusterRole != "" {
			to.Kind, to.Name = "ClusterRole", *clusterRole
		}
		all, err := who.list()
		return &rbacv1.RoleBinding{
			TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "RoleBinding"},
			ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: to, Subjects: all,
		}, err
	}
}

func clusterRoleBindingFlags(flags *pflag.FlagSet, _ *session) build {
	clusterRole := flags.String("clusterrole", "", "ClusterRole this ClusterRoleBinding should reference")
	who := &subjects{}
	who.addFlags(flags)
	return func(name string, _ []string) (runtime.Object, error) {
		all, err := who.list()
		return &rbacv1.ClusterRoleBinding{
			TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRoleBinding"},
			ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: *clusterRole}, Subjects: all,
		}, err
	}
}

// serviceGenerators are the subcommands of create service, one per type.
var serviceGenerators = []generator{
	serviceGenerator(corev1.ServiceTypeClusterIP, "Create a ClusterIP service"),
	serviceGenerator(corev1.ServiceTypeNodePort, "Create a NodePort service"),
	serviceGenerator(corev1.ServiceTypeLoadBalancer, "Create a LoadBalancer service"),
	serviceGenerator(corev1.ServiceTypeExternalName, "Create an ExternalName service"),
}

func serviceGenerator(kind corev1.ServiceType, short string) generator {
	g := generator{
		use: strings.ToLower(string(kind)) + " NAME [--tcp=port:targetPort]", short: short,
		resource: coreResource("services"), failure: fmt.Sprintf("failed to create %s service", kind),
		flags: func(flags *pflag.FlagSet, _ *session) build { return serviceFlags(flags, kind) },
	}
	if kind == corev1.ServiceTypeExternalName {
		g.required = []string{"external-name"}
	}
	return g
}
