// Package certs has the credentials that the parts of a control plane authenticate each other with: its CAs, the
// identities of its components, and the command `coxswain certs`, which makes, renews and checks them as files.
//
// The command makes four CAs, certificates with their keys, the key that signs ServiceAccount tokens, and kubeconfigs.
// The CAs are separate because they grant different rights: clients of etcd can read and write everything, front
// proxies can act as any user, and no client of the API server may accept a node in its place. The names below pki/ are
// kubeadm's.
package certs

import (
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/cmd/coxswain/datadir"
	"github.com/coxswain-dev/coxswain/cmd/coxswain/serviceranges"
)

// certsFlags selects the credentials to make.
type certsFlags struct {
	dir          string
	server       string
	sans         []string
	etcdSANs     []string
	serviceCIDRs []string
	nodes        int
	prefixes     []string
	validity     time.Duration
	renew        bool
	components   componentFlags
	changed      func(flag string) bool
}

func (f *certsFlags) add(fs *pflag.FlagSet) {
	f.addServer(fs)
	f.addValidity(fs)
	fs.StringSliceVar(&f.sans, "tls-san", nil, "further names and addresses of the API server, for its certificate")
	fs.StringSliceVar(&f.etcdSANs, "etcd-san", nil,
		"names and addresses of etcd's members, for their certificates, besides localhost")
	fs.StringSliceVar(&f.serviceCIDRs, "service-cluster-ip-range", []string{"10.96.0.0/16"},
		"CIDRs of cluster IPs; the Service kubernetes has the first address")
	fs.IntVar(&f.nodes, "nodes", 3, "number of Nodes of each --node-prefix to make identities for")
	fs.StringSliceVar(&f.prefixes, "node-prefix", []string{"node-"}, "prefixes of the Nodes' names; each "+
		"prefix has a kubeconfig of its own, named after it, for a machine of its own")
}

func (f *certsFlags) addServer(fs *pflag.FlagSet) {
	fs.StringVar(&f.server, "server", "https://127.0.0.1:6443",
		"address of the API server for clients; existing kubeconfigs get it only if this flag is set")
}

func (f *certsFlags) addValidity(fs *pflag.FlagSet) {
	fs.DurationVar(&f.validity, "validity", 365*24*time.Hour,
		"how long new certificates are valid; CAs are valid for ten years")
}

// New returns the command `coxswain certs`.
func New() *cobra.Command {
	f := &certsFlags{}
	cmd := &cobra.Command{
		Use: "certs",
		Short: "Make, renew and check the certificates and kubeconfigs of a control plane of several processes or " +
			"machines",
		Long: `Make the certificates, keys and kubeconfigs of a control plane whose parts are separate
processes, on one machine or several. The files are in --data-dir, with mode 0600; copy them to
the machines that need them.

The command can be run again, for example to add nodes or names: it keeps files that match the
flags, and makes missing and expired ones, and certificates without a name that the flags ask for.
With --renew it makes all files again except the CAs and the service accounts' key. It replaces
certificates of another CA only with --renew, and never completes a CA or that key if one of their
files is missing.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.changed = cmd.Flags().Changed
			all, err := f.credentials()
			if err != nil {
				return err
			}
			if err := f.run(cmd.OutOrStdout(), all); err != nil {
				return err
			}
			return f.writeComponents()
		},
	}
	cmd.PersistentFlags().StringVar(&f.dir, "data-dir", "./.coxswain",
		"folder of the kubeconfigs, with the certificates and keys in pki below it")
	f.add(cmd.Flags())
	cmd.Flags().BoolVar(&f.renew, "renew", false, "renew everything except the CAs and the service accounts' key")
	cmd.Flags().StringVar(&f.components.dir, "components-dir", "", "folder in which each component gets a folder "+
		"of its own with the files that it needs: etcd, apiserver, controllers, scheduler, admin, and one "+
		"for each --node-prefix")
	cmd.Flags().StringToIntVar(&f.components.replicas, "component-replicas", nil, "number of processes of a "+
		"component, each with keys, certificates and a folder of its own, such as etcd=3,apiserver=3,controllers=2,"+
		"scheduler=2: etcd-1, etcd-2 and so on. The names of --etcd-san are then the members', in this order")
	cmd.Flags().StringToStringVar(&f.components.owners, "component-owner", nil, "IDs of the users, and of their "+
		"groups, that own these folders, such as etcd=2379,apiserver=6443; default this user")
	cmd.Flags().BoolVar(&f.components.signing, "component-signing", false, "also give the controllers the keys of "+
		"the cluster's CA, of the CA of nodes' serving certificates and of the service accounts, to sign "+
		"certificates and tokens in Secrets")
	cmd.AddCommand(f.newRenew(), f.newCheckExpiration())
	return cmd
}

func (f *certsFlags) newRenew() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "renew all|NAME...",
		Short: "Renew certificates and kubeconfigs, with the names and users that they have",
		Long: `Replace certificates and kubeconfigs by new ones with new keys, with the names and users that they
have. check-expiration lists the names. Running processes reload their files by themselves.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.renew, f.changed = true, cmd.Flags().Changed
			all, err := f.existing()
			if err != nil {
				return err
			}
			if all, err = selectNamed(all, args); err != nil {
				return err
			}
			return f.run(cmd.OutOrStdout(), all)
		},
	}
	f.addServer(cmd.Flags())
	f.addValidity(cmd.Flags())
	return cmd
}

func (f *certsFlags) newCheckExpiration() *cobra.Command {
	var within time.Duration
	cmd := &cobra.Command{
		Use:   "check-expiration",
		Short: "List when certificates and kubeconfigs expire",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.checkExpiration(cmd.OutOrStdout(), within)
		},
	}
	cmd.Flags().DurationVar(&within, "fail-within", 0,
		"fail if a certificate expires within this time, for scripts and alerts; an expired one always fails")
	return cmd
}

// credential is a kubeconfig, or a certificate and its key.
type credential interface {
	// name returns the path below pki without extension, or the name of the kubeconfig.
	name() string
	// authority returns the name of its CA.
	authority() string
	// certificates returns the existing certificates, or fs.ErrNotExist if there are none.
	certificates(f *certsFlags) ([]*x509.Certificate, error)
	// good reports whether the existing certificates satisfy the flags, apart from expiry.
	good(f *certsFlags, existing []*x509.Certificate) bool
	// make writes new certificates, which keep additional names of the existing ones.
	make(f *certsFlags, ca *pki.CA, existing []*x509.Certificate) error
}

const (
	ClusterCA    = "ca"
	etcdCA       = "etcd/ca"
	frontProxyCA = "front-proxy-ca"
	// KubeletServingCA signs the nodes' serving certificates.
	KubeletServingCA = "kubelet-serving-ca"

	// FrontProxyClient is the user of the API server's client certificate for extension servers, and the name of its
	// file.
	FrontProxyClient = "front-proxy-client"
)

// caNames has the common names of the CAs.
var caNames = map[string]string{ClusterCA: "coxswain", etcdCA: "coxswain-etcd", frontProxyCA: frontProxyCA,
	KubeletServingCA: KubeletServingCA}

// credentials returns everything that the flags ask for.
func (f *certsFlags) credentials() ([]credential, error) {
	server, err := f.serverHosts()
	if err != nil {
		return nil, err
	}
	if err := f.components.checkReplicas(); err != nil {
		return nil, err
	}
	var all []credential
	for _, i := range f.components.instances("apiserver") {
		all = append(all, serverCredentials(i, server)...)
	}
	for n, i := range f.components.instances("etcd") {
		all = append(all, etcdCredentials(i, f.memberHosts(n))...)
	}
	all = append(all, &kubeconfigFile{"admin", []Identity{AdminIdentity}},
		&kubeconfigFile{"super-admin", []Identity{SuperAdminIdentity}})
	for _, p := range ComponentIdentities {
		for _, i := range f.components.instances(p.Name) {
			all = append(all, &kubeconfigFile{i.or(p.Name), []Identity{p.Identity}})
		}
	}
	for _, i := range f.components.instances("controllers") {
		all = append(all, &kubeconfigFile{i.or("controllers"), ControllersIdentities()})
	}
	if f.nodes < 0 || f.nodes > 10000 {
		return nil, errors.New("--nodes: must be between 0 and 10000")
	}
	for _, prefix := range f.prefixes {
		name := strings.TrimRight(prefix, "-.")
		if name == "" || slices.ContainsFunc(all, func(c credential) bool {
			return c.name() == name+datadir.KubeconfigSuffix
		}) {
			return nil, fmt.Errorf("--node-prefix: %q cannot name a kubeconfig of its own", prefix)
		}
		var users []Identity
		for _, node := range NodeNames(prefix, f.nodes) {
			users = append(users, NodeIdentity(node))
		}
		if len(users) > 0 {
			all = append(all, &kubeconfigFile{name, users})
		}
	}
	return all, nil
}

// serverHosts returns the names and addresses of the API server: common ones, the host of --server, and --tls-san.
func (f *certsFlags) serverHosts() ([]string, error) {
	u, err := url.Parse(f.server)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" {
		return nil, fmt.Errorf("--server: %q is not an https URL", f.server)
	}
	cidrs, err := serviceranges.Parse(f.serviceCIDRs)
	if err != nil {
		return nil, err
	}
	hosts := append(ServerHosts(cidrs), u.Hostname())
	hosts = append(hosts, f.sans...)
	slices.Sort(hosts)
	return slices.Compact(hosts), nil
}

// ServerHosts returns the names and addresses that every API server has: for clients on its machine, and for pods,
// which use the Service kubernetes. The Service has an address in each of the ranges.
func ServerHosts(ranges []netip.Prefix) []string {
	hosts := []string{"127.0.0.1", "::1", "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
		"kubernetes.default.svc.cluster.local"}
	for _, r := range ranges {
		hosts = append(hosts, serviceranges.KubernetesIP(r).String())
	}
	return hosts
}

// selectNamed returns the credentials with the names, or all for the name all.
func selectNamed(all []credential, names []string) ([]credential, error) {
	if slices.Equal(names, []string{"all"}) {
		return all, nil
	}
	var some []credential
	for _, name := range names {
		i := slices.IndexFunc(all, func(c credential) bool { return c.name() == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no certificate or kubeconfig %q; check-expiration lists them", name)
		}
		some = append(some, all[i])
	}
	return some, nil
}

// run makes the credentials that are missing, have expired or do not satisfy the flags, and prints their names. With
// --renew it makes all of them.
func (f *certsFlags) run(out io.Writer, all []credential) error {
	if f.validity < 10*time.Second {
		return errors.New("--validity: must be ten seconds at least")
	}
	if err := datadir.KeepPrivate(f.dir); err != nil {
		return err
	}
	cas := map[string]*pki.CA{}
	for name, common := range caNames {
		var err error
		if cas[name], err = pki.OpenNamedCA(f.pki(name), common); err != nil {
			return err
		}
	}
	if err := f.ensureServiceAccountKey(); err != nil {
		return err
	}
	if err := f.refuseOthers(cas, all); err != nil {
		return err
	}
	made := 0
	for _, c := range all {
		ca := cas[c.authority()]
		existing, err := c.certificates(f)
		if err == nil && !f.renew && valid(ca, existing) && c.good(f, existing) {
			continue
		}
		if err := c.make(f, ca, existing); err != nil {
			return fmt.Errorf("%s: %w", c.name(), err)
		}
		made++
		fmt.Fprintln(out, "made", c.name())
	}
	if made == 0 {
		fmt.Fprintf(out, "%s has everything; nothing was changed.\n", f.dir)
	}
	return nil
}

// refuseOthers returns an error for certificates of another CA, which only --renew replaces.
func (f *certsFlags) refuseOthers(cas map[string]*pki.CA, all []credential) error {
	if f.renew {
		return nil
	}
	for _, c := range all {
		existing, err := c.certificates(f)
		if err != nil {
			continue // missing or broken
		}
		for _, cert := range existing {
			if cert.CheckSignatureFrom(cas[c.authority()].Certificate()) != nil {
				return fmt.Errorf("%s is of another CA than pki/%s.crt: coxswain certs renew %[1]s replaces it",
					c.name(), c.authority())
			}
		}
	}
	return nil
}

// valid reports whether there are certificates, and all of them are signed by the CA and within their validity.
func valid(ca *pki.CA, certs []*x509.Certificate) bool {
	for _, cert := range certs {
		_, err := cert.Verify(x509.VerifyOptions{Roots: ca.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
		if err != nil {
			return false
		}
	}
	return len(certs) > 0
}

func (f *certsFlags) pki(name string) string {
	return filepath.Join(f.dir, "pki", filepath.FromSlash(name))
}

// ensureServiceAccountKey makes sa.key if it is missing, and sa.pub for components that only verify tokens. An existing
// sa.pub may hold other keys as well.
func (f *certsFlags) ensureServiceAccountKey() error {
	private, public := f.pki("sa.key"), f.pki("sa.pub")
	if err := pki.EnsureKey(private); err != nil {
		return err
	}
	key, err := authn.ReadSigningKey(private)
	if err != nil {
		return err
	}
	keys, err := authn.ReadPublicKeys(public)
	if errors.Is(err, fs.ErrNotExist) {
		content, err := pki.PublicKeyPEM(key.Public())
		if err != nil {
			return err
		}
		return pki.WriteSecret(public, content)
	}
	if err != nil {
		return err
	}
	// All public keys of the standard library have this method.
	own := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	if !slices.ContainsFunc(keys, func(k crypto.PublicKey) bool { return own.Equal(k) }) {
		return fmt.Errorf("%s does not have the public key of %s: move away the one that is wrong", public, private)
	}
	return nil
}

// checkExpiration lists all certificates, and returns an error if one has expired or expires within the given time.
func (f *certsFlags) checkExpiration(out io.Writer, within time.Duration) error {
	all, err := f.existing()
	if err != nil {
		return err
	}
	now := time.Now()
	var near []string
	table := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	row := func(name, authority string, cert *x509.Certificate) {
		left := cert.NotAfter.Sub(now)
		text := "<invalid>"
		if left > 0 {
			text = duration.ShortHumanDuration(left)
		}
		if left <= within {
			near = append(near, name)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", name, cert.NotAfter.UTC().Format("Jan 02, 2006 15:04 MST"),
			text, authority)
	}
	fmt.Fprintln(table, "CERTIFICATE\tEXPIRES\tRESIDUAL TIME\tCERTIFICATE AUTHORITY")
	for _, c := range all {
		certs, err := c.certificates(f)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name(), err)
		}
		row(c.name(), c.authority(), slices.MinFunc(certs, func(a, b *x509.Certificate) int {
			return a.NotAfter.Compare(b.NotAfter)
		}))
	}
	fmt.Fprintln(table, "\t\t\t")
	fmt.Fprintln(table, "CERTIFICATE AUTHORITY\tEXPIRES\tRESIDUAL TIME\t")
	for _, name := range []string{ClusterCA, etcdCA, frontProxyCA, KubeletServingCA} {
		if ca, err := readCertificate(f.pki(name) + ".crt"); err == nil {
			row(name, "", ca)
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if len(near) > 0 {
		return fmt.Errorf("expired, or about to: %s", strings.Join(near, ", "))
	}
	return nil
}

// hostsOf returns the names and addresses in a certificate.
func hostsOf(cert *x509.Certificate) []string {
	hosts := slices.Clone(cert.DNSNames)
	for _, ip := range cert.IPAddresses {
		hosts = append(hosts, ip.String())
	}
	return hosts
}

// covers reports whether a certificate is valid for all hosts.
func covers(cert *x509.Certificate, hosts []string) bool {
	existing := hostsOf(cert)
	return !slices.ContainsFunc(hosts, func(h string) bool {
		if ip := net.ParseIP(h); ip != nil {
			h = ip.String()
		}
		return !slices.Contains(existing, h)
	})
}
