package kubectllite

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/cli-runtime/pkg/printers"
)

type apiResourcesOptions struct {
	*session
	group      string
	namespaced bool
	verbs      []string
	categories []string
	sortBy     string
	output     string
	noHeaders  bool
	cached     bool

	anyGroup, anyScope bool
}

func newAPIResources(s *session) *cobra.Command {
	o := &apiResourcesOptions{session: s}
	cmd := &cobra.Command{
		Use: "api-resources", Short: "Print the supported API resources on the server", Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.anyGroup, o.anyScope = !cmd.Flags().Changed("api-group"), !cmd.Flags().Changed("namespaced")
			switch {
			case o.output != "" && o.output != "wide" && o.output != "name":
				return fmt.Errorf("--output %v is not available", o.output)
			case o.sortBy != "" && o.sortBy != "name" && o.sortBy != "kind":
				return fmt.Errorf("--sort-by accepts only name or kind")
			}
			return o.run()
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.group, "api-group", "", "Limit to resources in the specified API group.")
	flags.BoolVar(&o.namespaced, "namespaced", true, "If false, non-namespaced resources will be returned, otherwise returning namespaced resources by default.")
	flags.StringSliceVar(&o.verbs, "verbs", nil, "Limit to resources that support the specified verbs.")
	flags.StringSliceVar(&o.categories, "categories", nil, "Limit to resources that belong to the specified categories.")
	flags.StringVar(&o.sortBy, "sort-by", "", "If non-empty, sort list of resources using specified field. The field can be either 'name' or 'kind'.")
	flags.StringVarP(&o.output, "output", "o", "", "Output format. One of: (name, wide).")
	flags.BoolVar(&o.noHeaders, "no-headers", false, "When using the default or custom-column output format, don't print headers (default print headers).")
	flags.BoolVar(&o.cached, "cached", false, "Use the cached list of resources if available.")
	return cmd
}

func (o *apiResourcesOptions) run() error {
	client, err := o.ToDiscoveryClient()
	if err != nil {
		return err
	}
	if !o.cached {
		client.Invalidate()
	}
	lists, failed := client.ServerPreferredResources() // what could be found is shown even where some group did not answer
	found, err := o.choose(lists)
	if err != nil {
		return err
	}
	slices.SortStableFunc(found, func(a, b metav1.APIResource) int {
		return strings.Compare(o.key(a)+"\x00"+a.Name, o.key(b)+"\x00"+b.Name)
	})
	w := printers.GetNewTabWriter(o.Out)
	if !o.noHeaders && o.output != "name" && len(found) > 0 {
		header := "NAME\tSHORTNAMES\tAPIVERSION\tNAMESPACED\tKIND"
		if o.output == "wide" {
			header += "\tVERBS\tCATEGORIES"
		}
		fmt.Fprintln(w, header)
	}
	for _, r := range found {
		fmt.Fprintln(w, o.row(r))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return failed
}

func (o *apiResourcesOptions) choose(lists []*metav1.APIResourceList) ([]metav1.APIResource, error) {
	var found []metav1.APIResource
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, err
		}
		if !o.anyGroup && o.group != gv.Group {
			continue
		}
		for _, r := range list.APIResources {
			if len(r.Verbs) == 0 || !o.anyScope && o.namespaced != r.Namespaced ||
				!sets.New(r.Verbs...).HasAll(o.verbs...) || !sets.New(r.Categories...).HasAll(o.categories...) {
				continue
			}
			r.Group, r.Version = gv.Group, gv.Version
			found = append(found, r)
		}
	}
	return found, nil
}

func (o *apiResourcesOptions) key(r metav1.APIResource) string {
	switch o.sortBy {
	case "name":
		return r.Name
	case "kind":
		return r.Kind
	}
	return r.Group
}

func (o *apiResourcesOptions) row(r metav1.APIResource) string {
	if o.output == "name" {
		return strings.TrimSuffix(r.Name+"."+r.Group, ".")
	}
	row := fmt.Sprintf("%s\t%s\t%s\t%v\t%s", r.Name, strings.Join(r.ShortNames, ","),
		schema.GroupVersion{Group: r.Group, Version: r.Version}, r.Namespaced, r.Kind)
	if o.output == "wide" {
		row += fmt.Sprintf("\t%s\t%s", strings.Join(r.Verbs, ","), strings.Join(r.Categories, ","))
	}
	return row
}

func newAPIVersions(s *session) *cobra.Command {
	return &cobra.Command{
		Use: "api-versions", Short: `Print the supported API versions on the server, in the form of "group/version"`, Args: noArguments,
		RunE: func(*cobra.Command, []string) error {
			client, err := s.ToDiscoveryClient()
			if err != nil {
				return err
			}
			client.Invalidate()
			groups, err := client.ServerGroups()
			if err != nil {
				return fmt.Errorf("couldn't get available api versions from server: %v", err)
			}
			versions := metav1.ExtractGroupVersions(groups)
			slices.Sort(versions)
			for _, v := range versions {
				fmt.Fprintln(s.Out, v)
			}
			return nil
		},
	}
}
