package controllers_test

import (
	"fmt"
	"go/ast"
	"go/build"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// request is a request in the code of a controller.
type request struct {
	verb, group, resource, subresource string
	namespace, name                    string // if they are constants
	at                                 token.Position
}

func (r request) String() string {
	text := r.verb + " " + r.resource
	if r.subresource != "" {
		text += "/" + r.subresource
	}
	return strings.TrimSpace(text + " " + r.group)
}

// methods are the client's methods that make requests, by their verbs and, after a slash, subresources.
var methods = map[string]string{
	"Get": "get", "List": "list", "Watch": "watch", "Create": "create", "Update": "update",
	"UpdateStatus": "update/status",
	"Patch":        "patch", "Apply": "patch", "ApplyStatus": "patch/status", "Delete": "delete",
	"DeleteCollection": "deletecollection",
	"UpdateApproval":   "update/approval", "Finalize": "update/finalize", "Bind": "create/binding",
	"EvictV1": "create/eviction",
	"Evict":   "create/eviction", "EvictV1beta1": "create/eviction", "CreateToken": "create/token",
	"GetScale":    "get/scale",
	"UpdateScale": "update/scale", "ApplyScale": "patch/scale",
	"UpdateEphemeralContainers": "update/ephemeralcontainers", "UpdateResize": "update/resize",
}

// rawMethods are the methods with which a REST client begins a write, with the number of their arguments.
var rawMethods = map[string]func(args int) bool{
	"Post": func(int) bool {
		return true
	}, "Put": func(int) bool { return true }, "Verb": func(n int) bool { return n == 1 },
	"Patch": func(n int) bool { return n == 1 }, "Delete": func(n int) bool { return n == 0 },
}

// anything is the resource of a controller that writes objects of all kinds.
var anything = request{group: "example.com", resource: "widgets"}

// program is the source of the controllers. Only its own packages are type-checked, which takes milliseconds;
// calls of the client are recognized by their form.
type program struct {
	fset     *token.FileSet
	info     *types.Info
	packages map[string]*types.Package
	bodies   map[*types.Func][]ast.Node    // of functions and methods
	always   map[*types.Package][]ast.Node // initial values of variables, and init functions
	named    map[string][]*types.Func      // methods by name
	results  map[*types.Func]ast.Expr      // the types of first results
	values   map[types.Object]ast.Expr     // last values assigned to variables
	declared map[types.Object]ast.Expr     // the types of parameters
	groups   map[string]string             // API groups by the client's methods for them
}

const here = "github.com/coxswain-dev/coxswain/controllers"

func readProgram() (*program, error) {
	p := &program{
		fset: token.NewFileSet(), packages: map[string]*types.Package{}, bodies: map[*types.Func][]ast.Node{},
		always: map[*types.Package][]ast.Node{},
		named:  map[string][]*types.Func{}, results: map[*types.Func]ast.Expr{}, values: map[types.Object]ast.Expr{},
		declared: map[types.Object]ast.Expr{},
		groups:   groupsOfClient(),
		info: &types.Info{Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{},
			Types: map[ast.Expr]types.TypeAndValue{}},
	}
	folders, err := filepath.Glob("*/*.go")
	for _, file := range folders {
		if _, err := p.Import(path.Join(here, filepath.Dir(file))); err != nil {
			return nil, err
		}
	}
	return p, err
}

// groupsOfClient returns the API groups by the names of the client's methods: CoreV1, AppsV1.
func groupsOfClient() map[string]string {
	groups := map[string]string{}
	client := reflect.ValueOf(kubernetes.NewForConfigOrDie(&rest.Config{Host: "http://127.0.0.1:1"}))
	for i := range client.NumMethod() {
		method := client.Method(i)
		if method.Type().NumIn() > 0 || method.Type().NumOut() != 1 {
			continue
		}
		if group, ok := method.Call(nil)[0].Interface().(interface{ RESTClient() rest.Interface }); ok {
			groups[client.Type().Method(i).Name] = group.RESTClient().APIVersion().Group
		}
	}
	delete(groups, "Discovery")
	return groups
}

// Import implements types.Importer. Packages outside the controllers are empty.
func (p *program) Import(name string) (*types.Package, error) {
	if pkg := p.packages[name]; pkg != nil {
		return pkg, nil
	}
	folder, ours := strings.CutPrefix(name, here+"/")
	if !ours {
		p.packages[name] = types.NewPackage(name, path.Base(name))
		p.packages[name].MarkComplete()
		return p.packages[name], nil
	}
	listed, err := build.ImportDir(folder, 0)
	if err != nil {
		return nil, err
	}
	var files []*ast.File
	for _, source := range listed.GoFiles {
		file, err := parser.ParseFile(p.fset, filepath.Join(folder, source), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	config := types.Config{Importer: p, Error: func(error) {}} // other packages are unknown
	checked, _ := config.Check(name, p.fset, files, p.info)
	p.packages[name] = checked
	for _, file := range files {
		p.read(checked, file)
	}
	return checked, nil
}

// read collects the declarations of a file that calls may lead to.
func (p *program) read(pkg *types.Package, file *ast.File) {
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok {
			p.always[pkg] = append(p.always[pkg], d)
			continue
		}
		if f.Name.Name == "init" && f.Recv == nil {
			p.always[pkg] = append(p.always[pkg], f)
			continue
		}
		fn, ok := p.info.Defs[f.Name].(*types.Func)
		if !ok || f.Body == nil {
			continue
		}
		p.bodies[fn] = append(p.bodies[fn], f.Body)
		if f.Recv != nil {
			p.named[f.Name.Name] = append(p.named[f.Name.Name], fn)
		}
		if f.Type.Results != nil {
			p.results[fn] = f.Type.Results.List[0].Type
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for i, left := range n.Lhs {
				if id, ok := left.(*ast.Ident); ok && len(n.Lhs) == len(n.Rhs) {
					p.values[p.object(id)] = n.Rhs[i]
				}
			}
		case *ast.FuncType:
			for _, field := range n.Params.List {
				for _, name := range field.Names {
					p.declared[p.object(name)] = field.Type
				}
			}
		}
		return true
	})
}

func (p *program) object(id *ast.Ident) types.Object {
	if o := p.info.Defs[id]; o != nil {
		return o
	}
	return p.info.Uses[id]
}

// of returns the requests that a function makes, itself or through functions that it mentions. errs are calls
// that look like requests and cannot be resolved.
func (p *program) of(root *types.Func) (found []request, errs []error) {
	seen, mentioned, throughInterface := map[ast.Node]bool{}, map[types.Object]bool{}, map[string]bool{}
	var visit func(*types.Package, ast.Node)
	reach := func(fn *types.Func) {
		fn = fn.Origin()
		if receiver := fn.Signature().Recv(); receiver != nil && passesOn(receiver.Type()) {
			return
		}
		for _, body := range slices.Concat(p.bodies[fn], p.always[fn.Pkg()]) {
			visit(fn.Pkg(), body)
		}
	}
	visit = func(pkg *types.Package, body ast.Node) {
		if seen[body] {
			return
		}
		seen[body] = true
		ast.Inspect(body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if r, err := p.request(n); err != nil {
					errs = append(errs, err)
				} else if r != nil {
					found = append(found, *r)
				}
			case *ast.SelectorExpr:
				// A method of an unknown type. Another package's method would be exported.
				if p.info.Uses[n.Sel] == nil && !n.Sel.IsExported() {
					for _, fn := range p.named[n.Sel.Name] {
						if fn.Pkg() == pkg {
							reach(fn)
						}
					}
				}
			case *ast.Ident:
				switch o := p.info.Uses[n].(type) {
				case *types.TypeName:
					mentioned[o] = true
				case *types.Func:
					if receiver := o.Signature().Recv(); receiver != nil && types.IsInterface(receiver.Type()) {
						throughInterface[o.Name()] = true
					}
					reach(o)
				}
			}
			return true
		})
	}
	reach(root)
	for before := -1; before != len(seen); {
		before = len(seen)
		for name := range maps.Clone(throughInterface) {
			for _, fn := range p.named[name] {
				if t, ok := deref(fn.Signature().Recv().Type()).(*types.Named); ok && mentioned[t.Origin().Obj()] {
					reach(fn)
				}
			}
		}
	}
	return found, errs
}

// passesOn reports whether a type is a client that only passes on its callers' requests.
func passesOn(t types.Type) bool {
	named, ok := deref(t).(*types.Named)
	return ok && slices.Contains([]string{"segmented", "segmentedGetter", "segmentedClient"}, named.Obj().Name())
}

func deref(t types.Type) types.Type {
	if pointer, ok := t.(*types.Pointer); ok {
		return pointer.Elem()
	}
	return t
}

// request returns the request of a call; nil if it makes none.
func (p *program) request(call *ast.CallExpr) (*request, error) {
	selector, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return nil, nil
	}
	if raw := rawMethods[selector.Sel.Name]; raw != nil && raw(len(call.Args)) && p.info.Uses[selector.Sel] == nil {
		return nil, fmt.Errorf("%s: of what resource %s is cannot be told: use the client's methods for it",
			p.fset.Position(call.Pos()), selector.Sel.Name)
	}
	method, ok := methods[selector.Sel.Name]
	if !ok || p.info.Uses[selector.Sel] != nil || len(call.Args) == 0 || !isContext(call.Args[0]) {
		return nil, nil // a function of the controllers, or a lister's
	}
	r, ok := p.target(selector.X)
	r.at = p.fset.Position(call.Pos())
	if !ok {
		return nil, fmt.Errorf("%s: of what resource %s is cannot be told", r.at, selector.Sel.Name)
	}
	verb, subresource, _ := strings.Cut(method, "/")
	r.verb = verb
	if subresource != "" {
		r.subresource = subresource
	}
	if named := verb == "get" || verb == "delete" || verb == "patch"; named && len(call.Args) > 1 {
		r.name = p.text(call.Args[1])
	}
	if selector.Sel.Name == "Patch" && len(call.Args) > 5 {
		r.subresource = p.text(call.Args[5])
	}
	return &r, nil
}

func isContext(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return strings.EqualFold(strings.TrimLeft(e.Name, "_"), "ctx")
	case *ast.SelectorExpr:
		return e.Sel.Name == "ctx"
	case *ast.CallExpr:
		if method, ok := e.Fun.(*ast.SelectorExpr); ok {
			return slices.Contains([]string{"Context", "Background", "WithoutCancel"}, method.Sel.Name)
		}
	}
	return false
}

var interfaces = regexp.MustCompile(`^(Namespaceable)?ResourceInterface$`)

// target returns the resource of a client expression.
func (p *program) target(e ast.Expr) (request, bool) {
	switch e := e.(type) {
	case *ast.Ident:
		o := p.object(e)
		if value := p.values[o]; value != nil {
			return p.target(value)
		}
		return p.ofType(p.declared[o])
	case *ast.CallExpr:
		switch f := e.Fun.(type) {
		case *ast.Ident:
			return p.ofType(p.results[p.function(f)])
		case *ast.SelectorExpr:
			if fn := p.function(f.Sel); fn != nil {
				return p.ofType(p.results[fn])
			}
			switch f.Sel.Name {
			case "Resource", "Namespace": // of a client of any objects
				return anything, true
			case "Scales":
				r := anything
				r.subresource = "scale"
				return r, true
			}
			group, ok := p.groupOf(f.X)
			r := request{group: group, resource: strings.ToLower(f.Sel.Name)}
			if len(e.Args) == 1 {
				r.namespace = p.text(e.Args[0])
			}
			return r, ok
		}
	}
	return request{}, false
}

func (p *program) function(id *ast.Ident) *types.Func {
	fn, _ := p.info.Uses[id].(*types.Func)
	return fn
}

func (p *program) ofType(e ast.Expr) (request, bool) {
	selector, ok := e.(*ast.SelectorExpr)
	return anything, ok && interfaces.MatchString(selector.Sel.Name)
}

// groupOf returns the API group of a client expression.
func (p *program) groupOf(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.Ident:
		if value := p.values[p.object(e)]; value != nil {
			return p.groupOf(value)
		}
	case *ast.CallExpr:
		if f, ok := e.Fun.(*ast.SelectorExpr); ok {
			group, ok := p.groups[f.Sel.Name]
			return group, ok
		}
	}
	return "", false
}

// text returns the value of a constant, or "".
func (p *program) text(e ast.Expr) string {
	if selector, ok := e.(*ast.SelectorExpr); ok {
		switch selector.Sel.Name {
		case "NamespaceSystem":
			return "kube-system"
		case "NamespacePublic":
			return "kube-public"
		case "NamespaceNodeLease":
			return "kube-node-lease"
		}
	}
	if v := p.info.Types[e].Value; v != nil && v.Kind() == constant.String {
		return constant.StringVal(v)
	}
	return ""
}
